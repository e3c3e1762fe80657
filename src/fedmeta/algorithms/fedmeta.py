"""FedMeta: one meta-gradient per node, one server step (Chen et al., 2018)."""

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
    mean_update,
)
from fedmeta.algorithms.server_optimizer import ServerOptimizer
from fedmeta.data.packing import NodeData
from fedmeta.objective import (
    Adaptation,
    Curvature,
    Facts,
    InverseSchedule,
    MetaGradient,
    Objective,
    Passes,
    Schedule,
    meta_gradient,
)
from fedmeta.tree import Tree


@dataclass(frozen=True)
class FedMeta(Algorithm):
    """MAML with the tasks on the nodes; with curvature "none" it is first-order MAML.

    Node:      G_i(θ)
    Platform:  θ⁺ = θ − β Σ w_i G_i(θ) / Σ w_i,  or Adam with that gradient

    Args:
        inner: α, steps and scope of the inner adaptation.
        step_size: β > 0.
        optimizer: "sgd" or "adam".
        curvature: "exact", "finite-difference" or "none".
        difference: δ_t of the finite difference.

    Example:
        >>> FedMeta(curvature="none").passes
        Passes(support=1, query=1)

    Reference: Chen, Luo, Dong, Li, He, Federated Meta-Learning with Fast Convergence and Efficient
    Communication, 2018.
    """

    name: ClassVar[str] = "fedmeta"

    inner: Adaptation = Adaptation()
    step_size: float = 0.01
    optimizer: Literal["sgd", "adam"] = "sgd"
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()

    def __post_init__(self) -> None:
        self.server  # noqa: B018 - building these checks their settings
        self.meta_gradient  # noqa: B018

    @property
    def server(self) -> ServerOptimizer:
        """The platform's optimiser."""
        return ServerOptimizer(self.optimizer, self.step_size)

    @property
    def meta_gradient(self) -> MetaGradient:
        """How G is computed."""
        return MetaGradient(self.inner, self.curvature, self.difference)

    @property
    def passes(self) -> Passes:
        """One meta-gradient per round."""
        return self.meta_gradient.passes

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target adapts as the nodes did."""
        return self.inner

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and the optimiser's moments."""
        return PlatformState(theta, self.server.init(theta))

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """One meta-gradient."""
        gradient, loss = meta_gradient(objective, self.meta_gradient, theta, data, facts)
        metrics = {"meta_loss": facts.weight * loss}
        return Contribution(tree.scale(facts.weight, gradient), facts.weight, metrics), node

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """One step of the optimiser."""
        gradient = mean_update(total)
        theta, memory = self.server.step(state.theta, gradient, state.memory)
        return PlatformState(theta, memory), {"gradient_norm": tree.squared_norm(gradient).sqrt()}
