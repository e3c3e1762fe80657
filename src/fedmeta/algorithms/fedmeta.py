"""FedMeta: one meta-gradient per node, one server step (Chen et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, LinearStep, NodeState
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.algorithms.platform_optimizer import PlatformOptimizer
from fedmeta.core import tree
from fedmeta.core.meta_gradient import meta_gradient
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class FedMeta(MetaLearner):
    """MAML with the tasks on the nodes; with curvature "none" it is first-order MAML.

    Node:      Δ_i = −G_i(θ)
    Platform:  θ⁺  = θ + β D(Σ w_i Δ_i / Σ w_i)

    Args:
        inner, curvature, difference: see `MetaLearner`.
        server: β and the direction D, see `PlatformOptimizer`; plain steps of 0.1 by default. In
            settings files `step_size` and `optimizer` ("sgd" or "adam") stand for them as well.

    Example:
        >>> FedMeta(curvature="none").passes
        Passes(support=1, query=1)

    Reference: Chen, Luo, Dong, Li, He, Federated Meta-Learning with Fast Convergence and Efficient
    Communication, 2018.
    """

    name: ClassVar[str] = "fedmeta"

    server: PlatformOptimizer | str = field(default=PlatformOptimizer("plain", 0.1), kw_only=True)

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """One meta-gradient."""
        gradient, loss = meta_gradient(objective, self.meta_gradient, theta, data, facts)
        metrics = {"meta_loss": facts.weight * loss}
        return Contribution(tree.scale(-facts.weight, gradient), facts.weight, metrics), node

    def linear_step(self, weight: Tensor, penalty: Tensor) -> LinearStep | None:
        """Its node step: w_i times −G."""
        rule, zero, one = self.meta_gradient, torch.zeros_like(weight), torch.ones_like(weight)
        return LinearStep(rule, None, zero, -weight, one, zero, weight, weight, None)
