"""FedMeta: one meta-gradient per node, one server step (Chen et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmeta.algorithms.algorithm import Contribution, Fleet, Metrics, NodeState, PlatformState
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.algorithms.server_optimizer import ServerOptimizer
from fedmeta.core import tree
from fedmeta.core.meta_gradient import meta_gradient
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class FedMeta(MetaLearner):
    """MAML with the tasks on the nodes; with curvature "none" it is first-order MAML.

    Node:      G_i(θ)
    Platform:  θ⁺ = θ − β Σ w_i G_i(θ) / Σ w_i,  or Adam with that gradient

    Args:
        inner, curvature, difference: see `MetaLearner`.
        step_size: β > 0.
        optimizer: "sgd" or "adam".

    Example:
        >>> FedMeta(curvature="none").passes
        Passes(support=1, query=1)

    Reference: Chen, Luo, Dong, Li, He, Federated Meta-Learning with Fast Convergence and Efficient
    Communication, 2018.
    """

    name: ClassVar[str] = "fedmeta"

    step_size: float = 0.1
    optimizer: Literal["sgd", "adam"] = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        ServerOptimizer(self.optimizer, self.step_size)  # checks both

    @property
    def server(self) -> ServerOptimizer:
        """The platform's optimiser."""
        return ServerOptimizer(self.optimizer, self.step_size)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and the optimiser's moments."""
        start = self.server.platform_state(self.started(theta))
        return self.separated(start.theta, start.memory)

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
        joint = PlatformState(self.joined(state), state.memory)
        after, metrics = self.server.platform_step(joint, total)
        return self.separated(after.theta, after.memory), metrics
