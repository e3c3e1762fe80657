"""FedProx: local training tied to the model that was sent (Li et al., MLSys 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import Contribution, NodeState, displacement
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core import step_sizes, tree
from fedmeta.core.errors import require
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.plain_values import is_finite_number
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term in the local loss.

    Node:      θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) + μ (θ_i − θ)], E times from θ
    Platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i

    These are gradient steps on L_i(θ_i) + μ/2 ‖θ_i − θ‖². With E = 1 the term is zero.

    Args:
        proximity: μ ≥ 0; 0 is FedAvg. Keep ημ below 1.
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts.
        step_rate: see `Baseline`.

    Example:
        >>> FedProx(proximity=0.1).passes
        Passes(support=5, query=5)

    Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous
    Networks, MLSys 2020.
    """

    name: ClassVar[str] = "fedprox"

    local_steps: int = 5
    proximity: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = is_finite_number(self.proximity) and self.proximity >= 0
        require(fits, "proximity", self.proximity, "a number of at least 0")

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local steps on the loss with its proximal term."""
        model, _ = step_sizes.split(theta)

        def pull(local: Tree) -> Tree:
            return tree.scale(self.proximity, tree.subtract(local, model))

        local, loss = self.trained(objective, model, data, facts, pull)
        local = {**local, **self.learned_steps(objective, theta, data, facts)}
        return displacement(theta, local, facts, {"local_loss": loss}), node
