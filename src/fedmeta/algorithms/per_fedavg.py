"""Per-FedAvg: local meta-gradient steps, then an average (Fallah et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, LinearStep, NodeState, displacement
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.core import randomness, tree
from fedmeta.core.errors import require_positive, require_whole
from fedmeta.core.meta_gradient import meta_gradient
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class PerFedAvg(MetaLearner):
    """FedAvg on the meta-objective.

    Node:      θ_i ← θ_i − β G_i(θ_i), E times from θ
    Platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i

    Args:
        inner, curvature, difference, server: see `MetaLearner`; "finite-difference" is the
            Hessian-free variant, "none" the first-order one.
        step_size: β > 0.
        local_steps: E ≥ 1.

    Example:
        >>> PerFedAvg(local_steps=2).passes
        Passes(support=6, query=2)

    Reference: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical
    Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020.
    """

    name: ClassVar[str] = "per-fedavg"

    step_size: float = 0.1
    local_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("step_size", self.step_size)
        require_whole("local_steps", self.local_steps, 1)

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local meta-steps."""
        local, losses = theta, []
        for step in range(self.local_steps):
            draw = facts._replace(key=randomness.fold(facts.key, step))
            gradient, loss = meta_gradient(objective, self.meta_gradient, local, data, draw)
            losses.append(loss)
            local = tree.descend(local, self.step_size, gradient)
        return displacement(theta, local, facts, {"meta_loss": losses[0]}), node

    def linear_step(self, weight: Tensor, penalty: Tensor) -> LinearStep | None:
        """One local step: θ_i − θ = −β G."""
        if self.local_steps > 1:
            return None
        zero, one = torch.zeros_like(weight), torch.ones_like(weight)
        gain, rule = torch.full_like(weight, -self.step_size), self.meta_gradient
        return LinearStep(rule, None, zero, gain, weight, zero, weight, weight, one, stream=0)
