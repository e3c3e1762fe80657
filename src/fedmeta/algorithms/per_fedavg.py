"""Per-FedAvg: local meta-gradient steps, then an average (Fallah et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta import randomness, tree
from fedmeta.algorithms.base import Algorithm, Contribution, NodeState, PlatformState, displacement
from fedmeta.data.packing import NodeData
from fedmeta.errors import require, require_positive
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
class PerFedAvg(Algorithm):
    """FedAvg on the meta-objective.

    Node:      θ_i ← θ_i − β G_i(θ_i), E times from θ
    Platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i

    Args:
        inner: α, steps and scope of the inner adaptation.
        step_size: β > 0.
        local_steps: E ≥ 1.
        curvature: "exact", "finite-difference" (Hessian-free) or "none" (first order).
        difference: δ_t of the finite difference.

    Example:
        >>> PerFedAvg(local_steps=2).passes
        Passes(support=6, query=2)

    Reference: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical
    Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020.
    """

    name: ClassVar[str] = "per-fedavg"

    inner: Adaptation = Adaptation()
    step_size: float = 0.005
    local_steps: int = 1
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()

    def __post_init__(self) -> None:
        require_positive("step_size", self.step_size)
        require(self.local_steps >= 1, "local_steps", self.local_steps, "a whole number ≥ 1")
        self.meta_gradient  # noqa: B018 - building it checks the curvature

    @property
    def meta_gradient(self) -> MetaGradient:
        """How G is computed."""
        return MetaGradient(self.inner, self.curvature, self.difference)

    @property
    def passes(self) -> Passes:
        """E meta-gradients per round."""
        one = self.meta_gradient.passes
        return Passes(self.local_steps * one.support, self.local_steps * one.query)

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target adapts as the nodes did."""
        return self.inner

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local meta-steps."""
        local, losses = theta, []
        for step in range(self.local_steps):
            draw = facts._replace(key=randomness.fold(facts.key, step))
            gradient, loss = meta_gradient(objective, self.meta_gradient, local, data, draw)
            losses.append(loss)
            local = tree.combine(1.0, local, -self.step_size, gradient)
        return displacement(theta, local, facts, {"meta_loss": losses[0]}), node
