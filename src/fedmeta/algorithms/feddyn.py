"""FedDyn: a local loss that moves with the global one (Acar et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import (
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
    displacement,
)
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core import step_sizes, tree
from fedmeta.core.errors import require_positive
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree

_OWN = "gradient"  # the slot of h_i in a node's state
_MEAN = "mean_gradient"  # the slot of h in the platform's memory


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedAvg with a dynamic regulariser, under which nodes agree at the optimum.

    Node:      min_{θ_i} L_i(θ_i) − ⟨h_i, θ_i⟩ + α/2 ‖θ_i − θ‖², by E gradient steps from θ:
               θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) − h_i + α (θ_i − θ)]
               h_i⁺ = h_i − α (θ_i − θ)                          at the minimum that is ∇L_i(θ_i)
    Platform:  h⁺  = h − α Σ w_i (θ_i − θ)                                   over those counted
               θ⁺  = Σ w_i θ_i / Σ w_i − h⁺/α

    h and all h_i begin at zero, and h is Σ w_i h_i over all nodes, with the share of the samples
    w_i where the paper has 1/N: the optimum is that of Σ w_i L_i. A node whose upload is lost keeps
    its h_i. The platform's whole step, Σ w_i (θ_i − θ) / Σ w_i − h⁺/α, is what `server` is given.

    Args:
        proximity: α > 0. Keep ηα below 1.
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts.
        step_rate: see `Baseline`.

    Example:
        >>> FedDyn(proximity=0.3).passes
        Passes(support=5, query=5)

    Reference: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, Federated Learning Based on
    Dynamic Regularization, ICLR 2021, algorithm 1.
    """

    name: ClassVar[str] = "feddyn"
    remedy: ClassVar[str] = "lower the step size, or raise the proximity α"

    step_size: float = 0.03
    local_steps: int = 5
    proximity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("proximity", self.proximity)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and h = 0."""
        state = super().init(theta, fleet)
        return PlatformState(state.theta, {**state.memory, _MEAN: tree.zeros_like(theta)})

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """h_i = 0."""
        return {_OWN: tree.zeros_like(theta)}

    def with_newcomers(self, state: PlatformState, theta: Tree, newcomers: Fleet) -> PlatformState:
        """Their h_i are 0, and the shares of all others shrink by 1 − Σw_i of the newcomers."""
        mean = tree.scale(1 - newcomers.penalty, state.memory[_MEAN])
        return PlatformState(state.theta, {**state.memory, _MEAN: mean})

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local steps on the regularised loss, and the new h_i."""
        model, _ = step_sizes.split(theta)
        before = node[_OWN]

        def term(local: Tree) -> Tree:
            return tree.combine(self.proximity, tree.subtract(local, model), -1.0, before)

        local, loss = self.trained(objective, model, data, facts, term)
        after = tree.descend(before, self.proximity, tree.subtract(local, model))
        local = {**local, **self.learned_steps(objective, theta, data, facts)}
        return displacement(theta, local, facts, {"local_loss": loss}), {_OWN: after}

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """h⁺, and with −h⁺/α beside the nodes' displacements FedAvg's step."""
        moved, _ = step_sizes.split(total.update)
        mean = tree.descend(state.memory[_MEAN], self.proximity, moved)
        # What is summed is divided by Σw_i later; where nobody was counted nothing moves.
        directed = tree.combine(1.0, moved, -total.weight / self.proximity, mean)
        total = total._replace(update={**total.update, **directed})
        after, metrics = super().platform_step(state, total, fleet)
        return PlatformState(after.theta, {**after.memory, _MEAN: mean}), metrics
