"""Centralised: the reference that ignores federation, training on the union of all source data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fedmeta.algorithms.algorithm import (
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
    mean_update,
)
from fedmeta.algorithms.learners import Baseline
from fedmeta.algorithms.platform_optimizer import PlatformOptimizer
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
        server: the optimiser, see `PlatformOptimizer`; Adam with steps of 0.001 by default. In
            settings files `step_size` and `optimizer` ("sgd" or "adam") stand for it as well.
        inner: how a target adapts.
        step_rate: see `Baseline`; s takes plain gradient steps, whatever the optimiser of θ, unless
            that finds the length of its steps itself.
    """

    name: ClassVar[str] = "centralised"

    inner: Adaptation = Adaptation()
    server: PlatformOptimizer | str = field(default=PlatformOptimizer("adam", 0.001), kw_only=True)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ, s = 0 and the optimiser's moments."""
        if self.needs_losses:
            return super().init(theta, fleet)
        return self.separated(self.started(theta), self.optimizer.start(theta))

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """The negative gradient on all of the node's samples, and that of s."""
        model, steps = step_sizes.split(theta)
        samples = union(objective.varied(data, facts.key))
        gradient, loss = objective.gradient(model, samples, facts.key)
        if steps:
            gradient = {**gradient, **self.step_gradient(objective, theta, data, facts)}
        metrics = {"local_loss": facts.weight * loss}
        return Contribution(tree.scale(-facts.weight, gradient), facts.weight, metrics), node

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """One step of the optimiser in θ, a gradient step in s."""
        model, slopes = (total._replace(update=part) for part in step_sizes.split(total.update))
        if self.needs_losses or not slopes.update:
            return super().platform_step(state, total, fleet)
        rest = {slot: x for slot, x in state.memory.items() if slot != step_sizes.MEMORY}
        after, metrics = super().platform_step(PlatformState(state.theta, rest), model, fleet)
        steps = tree.descend(state.memory[step_sizes.MEMORY], -self.step_rate, mean_update(slopes))
        return self.separated({**after.theta, **steps}, after.memory), metrics
