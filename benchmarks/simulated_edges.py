"""Fleets with lost and hostile edges, simulated on the local engine.

Source nodes are dealt to edges in their order, so that all edges serve equally many (up to one). An
edge is lost, or lies, as a whole; the guard judges edges by their sums, as the platform does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError, require_choice, require_positive, require_whole
from fedmeta.core.objective import Facts
from fedmeta.core.randomness import Purpose
from fedmeta.core.serialization import LATER
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.data.federation import Federation
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink


def edge_of(nodes: int, edges: int, device: torch.device | None = None) -> Tensor:
    """Which edge serves each node.

    Example:
        >>> edge_of(5, 2).tolist()
        [0, 0, 0, 1, 1]
    """
    return torch.arange(nodes, device=device) * edges // nodes


@dataclass(frozen=True)
class EdgeLoss(Participation):
    """All uploads of an edge are lost together.

    Args:
        fraction, independent: see `Participation`; of nodes.
        lost: probability that an edge is lost in a round.
        edges: how many there are.

    Example:
        >>> EdgeLoss(lost=0.5, edges=3).counted(7, 2, randomness.key(0)).tolist()
        [0, 1, 2, 5, 6]
    """

    edges: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("edges", self.edges, 1)

    def counted(self, nodes: int, round_number: int, key: Tensor) -> Tensor:
        """Positions of the nodes whose edges are counted in a round."""
        there = Participation(lost=self.lost).counted(self.edges, round_number, key)
        asked = replace(self, lost=0.0)
        positions = super(EdgeLoss, asked).counted(nodes, round_number, key)
        return positions[torch.isin(edge_of(nodes, self.edges)[positions], there)]


@dataclass(frozen=True)
class Attack:
    """What a hostile edge sends instead of its contribution.

    Args:
        kind: "none"; "sign": −factor·v; "scale": factor·v; "noise": a random vector of v's norm,
            times the factor; "little": the honest edges' mean of v/w less factor times their
            deviation, number by number ("a little is enough").
        factor: how much larger it makes itself.
    """

    kind: Literal["none", "sign", "scale", "noise", "little"] = "none"
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_choice("attack.kind", self.kind, ("none", "sign", "scale", "noise", "little"))
        require_positive("attack.factor", self.factor)

    def sent(self, contribution: Contribution, key: Tensor) -> Contribution:
        """The lie that is told in place of a contribution."""
        honest = contribution.update
        if self.kind == "noise":
            drawn = {
                name: randomness.normal(randomness.fold(key, place), leaf.numel())
                .reshape(leaf.shape)
                .to(leaf.dtype)
                for place, (name, leaf) in enumerate(honest.items())
            }
            length = (tree.squared_norm(honest) / tree.squared_norm(drawn)).sqrt()
            return contribution._replace(update=tree.scale(self.factor * length, drawn))
        sign = 1.0 if self.kind == "scale" else -1.0
        return contribution._replace(update=tree.scale(sign * self.factor, honest))


@dataclass(frozen=True)
class EdgeUplink(Uplink):
    """An uplink through edges, the first of which may be hostile.

    Guard and robust sum look at edges instead of nodes, as the platform of a fleet does.

    All nodes must be computed at once: an edge is judged with the others or not at all.

    Args:
        guard, privacy, compression, robust: see `Uplink`.
        edges: how many there are.
        nodes: how many they serve together.
        attack: what the nodes of hostile edges do.
        hostile: how many edges are, the first ones.
    """

    edges: int = 10
    nodes: int = 40
    attack: Attack = Attack()
    hostile: int = field(default=1, metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("edges", self.edges, 1)
        require_whole("nodes", self.nodes, self.edges)
        require_whole("hostile", self.hostile, 1)

    def sent(
        self, contribution: Contribution, before: NodeState, after: NodeState, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """What a node sends: the truth, or a lie."""
        honest, state = super().sent(contribution, before, after, facts)
        if self.attack.kind in ("none", "little"):
            return honest, state
        lie = self.attack.sent(honest, randomness.fold(facts.key, Purpose.FALSE_UPLOAD))
        lies = facts.position * self.edges < self.nodes * self.hostile
        return map_leaves(lambda a, b: torch.where(lies, a, b), lie, honest), state

    def judged(
        self, contributions: Contribution, weights: Tensor, before: NodeState, after: NodeState
    ) -> tuple[Contribution, NodeState]:
        """What nodes may add to the sum; liars that know what all others send lie here."""
        if self.attack.kind == "little":
            contributions = self._a_little_off(contributions, weights)
        return super().judged(contributions, weights, before, after)

    def scales(
        self, contributions: Contribution, weights: Tensor, before: Tree
    ) -> tuple[Tensor, Tree]:
        """What nodes' contributions are multiplied by: the same for all of an edge."""
        sums, shares, edge = self._by_edge(contributions, weights)
        counts = {name: leaf.long() for name, leaf in before.items() if name == "opposite"}
        of_edges = map_leaves(lambda leaf: self._over_edges(leaf, edge) > 0, counts)
        scales, verdict = super().scales(sums, shares, of_edges)
        return scales[edge], {name: leaf[edge] for name, leaf in verdict.items()}

    def added(self, contributions: Contribution, weights: Tensor) -> Contribution:
        """The sum over edges."""
        sums, shares, _ = self._by_edge(contributions, weights)
        return super().added(sums, shares)

    def _by_edge(
        self, contributions: Contribution, weights: Tensor
    ) -> tuple[Contribution, Tensor, Tensor]:
        """Sums and weights of the edges, and which of them serves each node."""
        if len(weights) != self.nodes:
            raise SettingError(
                f"{len(weights)} of {self.nodes} nodes were computed at once, so edges cannot be "
                "judged against each other",
                "give execution.chunk and memory for all of them, and count everyone",
            )
        edge = edge_of(self.nodes, self.edges, weights.device)

        sums: Contribution = map_leaves(lambda leaf: self._over_edges(leaf, edge), contributions)
        return sums, self._over_edges(weights, edge), edge

    def _over_edges(self, leaf: Tensor, edge: Tensor) -> Tensor:
        return leaf.new_zeros(self.edges, *leaf.shape[1:]).index_add(0, edge, leaf)

    def _a_little_off(self, contributions: Contribution, weights: Tensor) -> Contribution:
        """All hostile edges send the same: just off the honest mean."""
        sums, shares, edge = self._by_edge(contributions, weights)
        lies = edge < self.hostile

        def lie(rows: Tensor, of_edges: Tensor) -> Tensor:
            each = (of_edges.reshape(self.edges, -1) / shares.unsqueeze(1))[self.hostile :]
            sent = each.mean(0) - self.attack.factor * each.std(0)
            told = (weights.unsqueeze(1) * sent).reshape(rows.shape)
            return torch.where(lies.reshape(-1, *[1] * (rows.ndim - 1)), told, rows)

        update = {n: lie(leaf, sums.update[n]) for n, leaf in contributions.update.items()}
        return contributions._replace(update=update)


def with_flipped_labels(federation: Federation, edges: int) -> Federation:
    """The federation with class c called C − 1 − c at all nodes of the first of the edges."""
    labels, sources = federation.labels.copy(), federation.sources
    hostile = [
        node
        for node, edge in zip(sources, edge_of(len(sources), edges).tolist(), strict=True)
        if edge == 0
    ]
    held = np.concatenate([part for node in hostile for part in (node.support, node.query)])
    labels[held] = federation.task.outputs - 1 - labels[held]
    return replace(federation, labels=labels)
