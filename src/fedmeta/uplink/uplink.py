"""The way from a node to the sum: what happens to a contribution between node_step and Σ.

    node        clip and noise (privacy), then shorten (compression)
    edge        judge the nodes (guard), then sum (robust_sum)
    platform    noise on the sum (privacy)

All of it is pure functions on trees, so that it runs vectorised over simulated nodes as well as on
a real edge. What a node must remember for it (what it could not send yet, how often it was refused)
is a part of the node's state, beside what the algorithm keeps there. Noise is drawn outside, by the
process that has its secret, and handed to nodes with their state (`with_noise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Facts
from fedmeta.core.randomness import Purpose
from fedmeta.core.secret_random import SecretRandom
from fedmeta.core.serialization import LATER
from fedmeta.core.storage import payload_bytes
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard, chosen, directions, relative_norm, scaled
from fedmeta.uplink.privacy import NOISE, Exposure, Privacy, calibrated, spent
from fedmeta.uplink.robust_sum import RobustSum

_RESIDUAL, _OWN = "uplink.residual", "uplink.own"  # slots of the node's state
_NOISE = "uplink.noise"  # a slot that is there during a round alone
_SLOTS = (_RESIDUAL, _OWN, _NOISE)


@dataclass(frozen=True)
class Uplink:
    """What is done to contributions on their way.

    Args:
        guard: who may add to the sum.
        privacy: what is promised to nodes.
        compression: how uploads are shortened.
        secure_aggregation: hide what single edges of a fleet send from the platform, see `masking`.
        robust: how contributions are added up; in a fleet those of edges, not of their nodes.

    Example:
        >>> Uplink().unmodified, Uplink(Guard("reject")).unmodified
        (True, False)
    """

    guard: Guard = Guard()
    privacy: Privacy = Privacy()
    compression: Compression = Compression()
    secure_aggregation: bool = False
    robust: RobustSum = field(default=RobustSum(), metadata=LATER)

    def __post_init__(self) -> None:
        if self.robust.method != "sum" and (self.secure_aggregation or self.privacy.on):
            raise SettingError(
                f"robust.method is {self.robust.method!r}, but with secure aggregation nobody sees "
                "single contributions, and with dp what they are compared by is noise",
                "leave one of them out: hide what nodes and edges send, or guard against lies",
            )
        if self.secure_aggregation and self.guard.outliers != "keep":
            raise SettingError(
                "secure aggregation and the guard are both asked for, but whoever sees only the "
                "sum of all edges can judge none of them",
                "leave one of them out: hide edges from the platform, or guard against them",
            )
        if self.secure_aggregation and self.compression.method != "none":
            raise SettingError(
                "secure aggregation and compression are both asked for, but masks fill every bit "
                "of every number, so that nothing can be left out",
                "leave one of them out",
            )
        if self.privacy.dp != "central":
            return
        if self.guard.outliers != "keep":
            raise SettingError(
                "dp = 'central' and the guard are both asked for, but one node can move the median "
                "and so decide whether others are counted: ε would not hold",
                "leave the guard out; clipping already bounds what a node can do",
            )
        if self.compression.method != "none":
            raise SettingError(
                "dp = 'central' and compression are both asked for, but what a node sends of its "
                "residual is not bounded by the clip: ε would not hold",
                "leave one of them out, or use dp = 'local'",
            )

    @property
    def unmodified(self) -> bool:
        """Whether contributions go their way as they are."""
        return replace(self, secure_aggregation=False) == Uplink()

    @property
    def judges(self) -> bool:
        """Whether contributions are held against each other."""
        return self.guard.outliers != "keep" or self.robust.method != "sum"

    def resolved(self, exposure: Exposure) -> Uplink:
        """The same with the noise that keeps the ε wanted."""
        return replace(self, privacy=calibrated(self.privacy, exposure))

    def promise(self, exposure: Exposure) -> dict[str, float | str | None]:
        """What is promised to nodes over all rounds, for the run's record; ε None: nothing."""
        if not self.privacy.on:
            return {}
        epsilon = spent(self.privacy, exposure)
        return {
            "unit": "node",
            "epsilon": None if epsilon == float("inf") else epsilon,
            "noise": NOISE,  # without which nobody is shown an ε
            "delta": self.privacy.delta,
            "rounds": exposure.rounds,
            "chance": exposure.chance,
        }

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """What a node remembers of its uploads before the first."""
        state: NodeState = {}
        if self.compression.method != "none":
            state[_RESIDUAL] = tree.zeros_like(theta)
        if not self.unmodified:
            # The key is a function of the seed and serves rounding alone.
            state[_OWN] = {
                "refused": torch.zeros_like(facts.key),
                "key": randomness.fold(facts.key, Purpose.NOISE),
            }
            if self.guard.looks_at_directions:
                state[_OWN]["opposite"] = torch.zeros_like(facts.key, dtype=torch.bool)
        return state

    def sent(
        self, contribution: Contribution, before: NodeState, after: NodeState, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """What a node sends, and its state with what it remembers of that.

        Args:
            contribution: as the algorithm made it.
            before: the node's whole state before the round.
            after: what the algorithm has made of its part.
            facts: of the node.
        """
        if self.unmodified:
            return contribution, after
        state = {**after, _OWN: before[_OWN]}
        if self.privacy.on:
            noise = before[_NOISE]["drawn"]
            contribution = self.privacy.at_node(contribution, facts.weight, noise)
        key = randomness.fold(before[_OWN]["key"], facts.key)
        if self.compression.method != "none":
            update, state[_RESIDUAL] = self.compression.sent(
                contribution.update, before[_RESIDUAL], randomness.fold(key, Purpose.ROUNDING)
            )
            contribution = contribution._replace(update=update)
        return contribution, state

    def judged(
        self, contributions: Contribution, weights: Tensor, before: NodeState, after: NodeState
    ) -> tuple[Contribution, NodeState]:
        """What nodes may add to the sum, and their states.

        Nothing is left of a node that is refused; it keeps its state, as one whose upload was lost.

        Args:
            contributions: of all nodes, along a first axis.
            weights: w_i, (nodes,).
            before: states before the round.
            after: states of those that are counted.
        """
        if not self.judges:
            return contributions, after
        before = {slot: leaves for slot, leaves in before.items() if slot != _NOISE}
        scales, verdict = self.scales(contributions, weights, before[_OWN])
        kept = scaled(contributions, scales)
        kept.metrics["refused"] = (scales == 0).to(weights.dtype)
        states: NodeState = map_leaves(lambda new, old: chosen(scales, new, old), after, before)
        refused = before[_OWN]["refused"] + (scales == 0)
        states[_OWN] = {**before[_OWN], **verdict, "refused": refused}
        return kept, states

    def scales(
        self, contributions: Contribution, weights: Tensor, before: Tree
    ) -> tuple[Tensor, Tree]:
        """What the contribution of every node is multiplied by, (nodes,), see `Guard.scales`.

        Args:
            contributions, weights: see `judged`.
            before: what nodes remember of their uploads, with the last verdict on directions.

        Returns:
            The scales, and the verdict on directions where they are looked at.
        """
        norms, verdict = torch.func.vmap(relative_norm)(contributions, weights), dict[str, Tensor]()
        if self.guard.looks_at_directions:
            units = directions(contributions)
            verdict["opposite"], _ = self.guard.opposite(units, before["opposite"])
        scales = self.guard.scales(norms, verdict.get("opposite"))
        selected = self.robust.selected(contributions, weights, scales > 0)
        return torch.where(selected, scales, torch.zeros_like(scales)), verdict

    def added(self, contributions: Contribution, weights: Tensor) -> Contribution:
        """The sum of contributions that were judged, see `RobustSum`; arguments as of `judged`."""
        if self.robust.number_by_number:
            return self.robust.added(contributions, weights)
        total: Contribution = map_leaves(lambda leaf: leaf.sum(0), contributions)
        return total

    def with_noise(
        self, states: NodeState, shape: Sequence[int], shared: Tree, source: SecretRandom
    ) -> NodeState:
        """States with the noise of one round's uploads, none of which is ever used again.

        Args:
            states: of some nodes.
            shape: of their first axes.
            shared: what nodes were sent, as long as what they will send; with the same first axes
                but the nodes'.
            source: secret of who computes them.
        """
        if not self.privacy.on:
            return states
        nodes, each = prod(shape), tree.size(shared) // prod(shape[:-1])
        drawn = self.privacy.noise_of_nodes(nodes, each, source)
        some = next(iter(shared.values()))
        return {**states, _NOISE: {"drawn": drawn.reshape(*shape, -1).to(some.device)}}

    @property
    def unit(self) -> float:
        """What numbers of an edge's sum are multiples of where it is masked."""
        return self.privacy.step if self.privacy.dp == "central" else 2.0**-40

    def summed(self, shared: Tree) -> Tree:
        """Tensors like those that are summed up in answer to `shared`: exact where noise wants it.

        Their values mean nothing.
        """
        if self.privacy.dp != "central":
            return shared
        return {name: leaf.double() for name, leaf in shared.items()}

    def released(
        self, total: Contribution, largest: Tensor, expected: Tensor, source: SecretRandom
    ) -> Contribution:
        """What the platform makes of the sum, see `Privacy.at_platform`."""
        return self.privacy.at_platform(total, largest, expected, source)

    def algorithm_part(self, state: NodeState) -> NodeState:
        """A node's state without what is kept for the uplink."""
        return {slot: leaves for slot, leaves in state.items() if slot not in _SLOTS}

    def bytes_up(self, update: Tree, scalars: Tree) -> int:
        """Bytes of the message that carries an update and its scalars."""
        some = next(iter(update.values()))
        wire = self.compression.encoded(update, randomness.key(0).to(some.device))
        return payload_bytes({**wire, **scalars})


def refusals(states: NodeState, names: Sequence[str]) -> dict[str, int]:
    """How often each node has been refused by the guard, those that never were left out."""
    if _OWN not in states:
        return {}
    counts = states[_OWN]["refused"].tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count > 0}
