"""FedAvg: local gradient steps, then a weighted average (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import Contribution, NodeState, displacement
from fedmeta.algorithms.learners import Baseline
from fedmeta.core import step_sizes, tree
from fedmeta.core.errors import require, require_positive, require_whole
from fedmeta.core.objective import Adaptation, Facts, Objective, local_descent
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class FedAvg(Baseline):
    """Average of models trained locally.

    Node:      θ_i ← θ_i − η ∇L_i(θ_i, Dˢ ∪ D^q), E times from θ
    Platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i

    Args:
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts; the training of θ does not look at it.
        step_rate: see `Baseline`.

    Example:
        >>> FedAvg(local_steps=5).passes
        Passes(support=5, query=5)

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017.
    """

    name: ClassVar[str] = "fedavg"

    step_size: float = 0.1
    local_steps: int = 1
    batch_size: int | None = None
    inner: Adaptation = Adaptation()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("step_size", self.step_size)
        require_whole("local_steps", self.local_steps, 1)
        fits = self.batch_size is None or self.batch_size >= 1
        require(fits, "batch_size", self.batch_size, "a whole number ≥ 1, or leave it out")

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local gradient steps and, where step sizes are learned, one in s."""
        model, steps = step_sizes.split(theta)
        rule = self.local_steps, self.step_size, self.batch_size
        local, loss = local_descent(objective, model, data, *rule, facts.key)
        if steps:
            slope = self.step_gradient(objective, theta, data, facts)
            local = {**local, **tree.descend(steps, self.step_rate, slope)}
        return displacement(theta, local, facts, {"local_loss": loss}), node
