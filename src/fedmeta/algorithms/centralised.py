"""Centralised: the reference that ignores federation, training on the union of all source data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmeta.algorithms.algorithm import (
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
    mean_update,
)
from fedmeta.algorithms.learners import Baseline
from fedmeta.algorithms.server_optimizer import ServerOptimizer
from fedmeta.core import step_sizes, tree
from fedmeta.core.objective import Adaptation, Facts, Objective
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class Centralised(Baseline):
    """Full-batch training on the union of the source data, one optimiser step per round.

    The mean loss over the union is Σ w_i L_i with w_i = D_i / ΣD_j, so its gradient is the weighted
    sum of the nodes' gradients: the reference needs the contract's sum and no pooling of data.

    Args:
        step_size: β > 0.
        optimizer: "adam" or "sgd".
        inner: how a target adapts.
        step_rate: see `Baseline`; s takes plain gradient steps, whatever the optimiser of θ.
    """

    name: ClassVar[str] = "centralised"

    step_size: float = 0.001
    optimizer: Literal["sgd", "adam"] = "adam"
    inner: Adaptation = Adaptation()

    def __post_init__(self) -> None:
        super().__post_init__()
        ServerOptimizer(self.optimizer, self.step_size)  # checks both

    @property
    def server(self) -> ServerOptimizer:
        """The optimiser."""
        return ServerOptimizer(self.optimizer, self.step_size)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and the optimiser's moments."""
        start = self.server.platform_state(theta)
        return self.separated(self.started(theta), start.memory)

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """The gradient on all of the node's samples, and that of s."""
        model, steps = step_sizes.split(theta)
        gradient, loss = objective.gradient(model, union(data), facts.key)
        if steps:
            gradient = {**gradient, **self.step_gradient(objective, theta, data, facts)}
        metrics = {"local_loss": facts.weight * loss}
        return Contribution(tree.scale(facts.weight, gradient), facts.weight, metrics), node

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """One step of the optimiser in θ, a gradient step in s."""
        model, slopes = (total._replace(update=part) for part in step_sizes.split(total.update))
        after, metrics = self.server.platform_step(state, model)
        if not slopes.update:
            return after, metrics
        steps = tree.descend(state.memory[step_sizes.MEMORY], self.step_rate, mean_update(slopes))
        return self.separated({**after.theta, **steps}, after.memory), metrics
