"""FedADMM: inexact ADMM on the plain loss, without meta-learning (Gong et al., ICDE 2022)."""

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
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree

_LOCAL, _DUAL = "local", "dual"  # the slots of θ_i and y_i in a node's state
_CONSENSUS = "consensus"  # the slot of u in the platform's memory


@dataclass(frozen=True)
class FedADMM(FedAvg):
    """ADMM for min Σ w_i L_i(θ_i) with θ_i = θ, nodes taking E gradient steps a round.

    Node:      θ_i⁺ from E steps  θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) + y_i + ρ (θ_i − θ)]
               that begin where its last ones ended
               y_i⁺ = y_i + ρ (θ_i⁺ − θ)
    It sends   Δ_i  = (θ_i⁺ + y_i⁺/ρ) − (θ_i + y_i/ρ)
    Platform:  u⁺   = u + Σ w_i Δ_i over those counted,   θ⁺ = u⁺

    u is Σ w_i (θ_i + y_i/ρ) over all nodes, whoever was counted: the paper's θ + η/|S| ΣΔ_i with
    η = |S|/N, for which it proves convergence, and the share of the samples w_i for its 1/N. All
    θ_i begin at the initial θ and all y_i at zero; a node whose upload is lost keeps both. The
    platform's step, u⁺ − θ, is what `server` is given. With exact local minima and full
    participation this is FedDyn with y_i = −h_i, ρ = α.

    The loss of a round is that of θ, for which nodes evaluate their samples once more, forward
    alone; it is no gradient pass.

    Args:
        penalty: ρ > 0. Keep ηρ below 1.
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts.
        step_rate: see `Baseline`.

    Example:
        >>> FedADMM(penalty=0.3).passes
        Passes(support=5, query=5)

    Reference: Gong, Li, Freris, FedADMM: A Robust Federated Deep Learning Framework with Adaptivity
    to System Heterogeneity, ICDE 2022, algorithm 1.
    """

    name: ClassVar[str] = "fedadmm"
    remedy: ClassVar[str] = "lower the step size, or raise the penalty ρ"

    step_size: float = 0.03
    local_steps: int = 5
    penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("penalty", self.penalty)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and u = θ."""
        state = super().init(theta, fleet)
        return PlatformState(state.theta, {**state.memory, _CONSENSUS: theta})

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """θ_i = θ and y_i = 0."""
        return {_LOCAL: theta, _DUAL: tree.zeros_like(theta)}

    def with_newcomers(self, state: PlatformState, theta: Tree, newcomers: Fleet) -> PlatformState:
        """Their θ_i are the θ given, and the shares of all others shrink by what theirs are."""
        share = newcomers.penalty
        consensus = tree.combine(1 - share, state.memory[_CONSENSUS], share, theta)
        return PlatformState(state.theta, {**state.memory, _CONSENSUS: consensus})

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local steps on the augmented Lagrangian, and the new θ_i and y_i."""
        model, _ = step_sizes.split(theta)
        before, dual, rho = node[_LOCAL], node[_DUAL], self.penalty

        def term(local: Tree) -> Tree:
            return tree.combine(rho, tree.subtract(local, model), 1.0, dual)

        local, _ = self.trained(objective, before, data, facts, term)
        residual = tree.subtract(local, model)
        increment = tree.add(tree.subtract(local, before), residual)  # Δ_i: y⁺ − y is ρ·residual
        state = {_LOCAL: local, _DUAL: tree.combine(1.0, dual, rho, residual)}
        key = objective.pass_key(facts.key, Purpose.SUPPORT, 0)
        loss = objective.value(model, union(data), key)
        joint = {**local, **self.learned_steps(objective, theta, data, facts)}
        sent = displacement(theta, joint, facts, {"local_loss": loss})
        update = {**sent.update, **tree.scale(facts.weight, increment)}
        return sent._replace(update=update), state

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """u⁺, and FedAvg's step with u⁺ − θ for the mean of displacements."""
        increments, _ = step_sizes.split(total.update)
        consensus = tree.add(state.memory[_CONSENSUS], increments)
        # What is summed is divided by Σw_i later; where nobody was counted nothing moves.
        directed = tree.scale(total.weight, tree.subtract(consensus, state.theta))
        total = total._replace(update={**total.update, **directed})
        after, metrics = super().platform_step(state, total, fleet)
        return PlatformState(after.theta, {**after.memory, _CONSENSUS: consensus}), metrics
