"""The way from a node to the sum: what happens to a contribution between node_step and Σ.

    node        clip and noise (privacy), then shorten (compression)
    edge        judge the nodes (guard), then sum
    platform    noise on the sum (privacy)

All of it is pure functions on trees, so that it runs vectorised over simulated nodes as well as on
a real edge. What a node must remember for it (what it could not send yet, how often it was refused,
the key of its noise) is a part of the node's state, beside what the algorithm keeps there.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Facts
from fedmeta.core.randomness import Purpose
from fedmeta.core.run_folder import WITHDRAWN
from fedmeta.core.storage import payload_bytes
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard, chosen, relative_norm, scaled
from fedmeta.uplink.privacy import Exposure, Privacy, calibrated, spent

_RESIDUAL, _OWN = "uplink.residual", "uplink.own"  # slots of the node's state


@dataclass(frozen=True)
class Uplink:
    """What is done to contributions on their way.

    Args:
        guard: who may add to the sum.
        privacy: what is promised to nodes.
        compression: how uploads are shortened.
        secure_aggregation: hide what single edges of a fleet send from the platform, see `masking`.

    Example:
        >>> Uplink().unmodified, Uplink(Guard("reject")).unmodified
        (True, False)
    """

    guard: Guard = Guard()
    privacy: Privacy = Privacy()
    compression: Compression = Compression()
    secure_aggregation: bool = False

    def __post_init__(self) -> None:
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

    def resolved(self, exposure: Exposure) -> Uplink:
        """The same with the noise that keeps the ε wanted."""
        return replace(self, privacy=calibrated(self.privacy, exposure))

    def promise(self, exposure: Exposure) -> dict[str, float | str | None]:
        """What is promised to nodes over all rounds, for the run's record; ε None: nothing."""
        if not self.privacy.on:
            return {}
        local = self.privacy.dp == "local"
        epsilon = float("inf") if local else spent(self.privacy, exposure)
        return {
            "unit": "node",
            "epsilon": None if epsilon == float("inf") else epsilon,
            **({"why": WITHDRAWN} if local else {}),
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
            # The key is a function of the seed: good for simulations, see `with_secrets`.
            state[_OWN] = {
                "refused": torch.zeros_like(facts.key),
                "key": randomness.fold(facts.key, Purpose.NOISE),
            }
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
        key = randomness.fold(before[_OWN]["key"], facts.key)
        if self.privacy.on:
            contribution = self.privacy.at_node(contribution, facts.weight, key)
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
        if self.guard.outliers == "keep":
            return contributions, after
        scales = self.scales(contributions, weights)
        kept = scaled(contributions, scales)
        kept.metrics["refused"] = (scales == 0).to(weights.dtype)
        states: NodeState = map_leaves(lambda new, old: chosen(scales, new, old), after, before)
        states[_OWN] = {**before[_OWN], "refused": before[_OWN]["refused"] + (scales == 0)}
        return kept, states

    def scales(self, contributions: Contribution, weights: Tensor) -> Tensor:
        """What the contribution of every node is multiplied by, (nodes,), see `Guard.scales`."""
        return self.guard.scales(torch.func.vmap(relative_norm)(contributions, weights))

    def released(
        self, total: Contribution, largest: Tensor, expected: Tensor, key: Tensor
    ) -> Contribution:
        """What the platform makes of the sum, see `Privacy.at_platform`."""
        return self.privacy.at_platform(
            total, largest, expected, randomness.fold(key, Purpose.NOISE)
        )

    def algorithm_part(self, state: NodeState) -> NodeState:
        """A node's state without what is kept for the uplink."""
        return {slot: leaves for slot, leaves in state.items() if slot not in (_RESIDUAL, _OWN)}

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


def with_secrets(states: NodeState) -> NodeState:
    """States whose noise nobody else can draw again: keys from the system's own randomness.

    A node must do so before its first round if dp = "local" is to mean anything: the seed of a run
    is known to the platform.
    """
    if _OWN not in states:
        return states
    keys = states[_OWN]["key"]
    drawn = [secrets.randbits(64) - (1 << 63) for _ in range(keys.numel())]
    fresh = torch.tensor(drawn, dtype=keys.dtype, device=keys.device).reshape(keys.shape)
    return {**states, _OWN: {**states[_OWN], "key": fresh}}
