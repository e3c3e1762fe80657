"""FedAvg: local gradient steps, then a weighted average (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

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

    With server="adam" it is FedAdam, with "yogi" FedYogi, with "momentum" FedAvgM, and with
    "orthogonal" the server half of FedMuon; these find the length of the platform's steps by
    themselves, and `PlatformOptimizer("adam", 0.01)` gives it.

    Args:
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts; the training of θ does not look at it.
        step_rate, server: see `Baseline`.

    Example:
        >>> FedAvg(local_steps=5).passes
        Passes(support=5, query=5)

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017; Reddi et al., Adaptive Federated Optimization, ICLR 2021.
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
        model, _ = step_sizes.split(theta)
        local, loss = self.trained(objective, model, data, facts)
        local = {**local, **self.learned_steps(objective, theta, data, facts)}
        return displacement(theta, local, facts, {"local_loss": loss}), node

    def trained(
        self,
        objective: Objective,
        start: Tree,
        data: NodeData,
        facts: Facts,
        term: Callable[[Tree], Tree] | None = None,
    ) -> tuple[Tree, Tensor]:
        """Where E local steps lead, and the loss at their start; see `local_descent`."""
        rule = self.local_steps, self.step_size, self.batch_size
        return local_descent(objective, start, data, *rule, facts.key, term)

    def learned_steps(
        self, objective: Objective, joint: Tree, data: NodeData, facts: Facts
    ) -> Tree:
        """s after a gradient step; nothing where no step sizes are learned."""
        _, steps = step_sizes.split(joint)
        if not steps:
            return {}
        slope = self.step_gradient(objective, joint, data, facts)
        return tree.descend(steps, self.step_rate, slope)
