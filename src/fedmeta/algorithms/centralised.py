"""Centralised: the reference that ignores federation, training on the union of all source data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmeta import tree
from fedmeta.algorithms.base import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
)
from fedmeta.algorithms.server_optimizer import ServerOptimizer
from fedmeta.data.packing import NodeData
from fedmeta.objective import Adaptation, Facts, Objective, Passes, union
from fedmeta.tree import Tree


@dataclass(frozen=True)
class Centralised(Algorithm):
    """Full-batch training on the union of the source data, one optimiser step per round.

    The mean loss over the union is Σ w_i L_i with w_i = D_i / ΣD_j, so its gradient is the weighted
    sum of the nodes' gradients: the reference needs the contract's sum and no pooling of data.

    Args:
        step_size: β > 0.
        optimizer: "adam" or "sgd".
        inner: how a target adapts.
    """

    name: ClassVar[str] = "centralised"

    step_size: float = 0.001
    optimizer: Literal["sgd", "adam"] = "adam"
    inner: Adaptation = Adaptation()

    def __post_init__(self) -> None:
        ServerOptimizer(self.optimizer, self.step_size)  # checks both

    @property
    def server(self) -> ServerOptimizer:
        """The optimiser."""
        return ServerOptimizer(self.optimizer, self.step_size)

    @property
    def passes(self) -> Passes:
        """One pass over all samples."""
        return Passes(1, 1)

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target takes the same adaptation as with every other algorithm."""
        return self.inner

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and the optimiser's moments."""
        return self.server.platform_state(theta)

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """The gradient on all of the node's samples."""
        gradient, loss = objective.gradient(theta, union(data), facts.key)
        metrics = {"local_loss": facts.weight * loss}
        return Contribution(tree.scale(facts.weight, gradient), facts.weight, metrics), node

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """One step of the optimiser."""
        return self.server.platform_step(state, total)
