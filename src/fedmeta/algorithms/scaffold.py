"""SCAFFOLD: local steps corrected by control variates (Karimireddy et al., ICML 2020)."""

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
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree

PREFIX = "control:"
"""What the names of control variates begin with where they travel beside θ."""

_CONTROL = "control"  # the slot of c in the platform's memory, and of c_i in a node's state


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg with the drift of every node's gradients taken out of its local steps.

    Node, sent θ and c:  θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) − c_i + c], E times from θ
                         c_i⁺ = c_i − c + (θ − θ_i) / (Eη)                       (option II)
    Platform:            θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i
                         c⁺  = c + Σ w_i (c_i⁺ − c_i)                      over those counted

    c and all c_i begin at zero, and c is Σ w_i c_i over all nodes: the paper's |S|/N times the mean
    over S, with the share of the samples w_i where the paper has 1/N. A node whose upload is lost
    keeps its c_i. What crosses is twice as long as θ, both ways: θ and c as one tree, w_i(θ_i − θ)
    and w_i(c_i⁺ − c_i) as one. Noise of differential privacy and clipping by the guard add up in c.

    Args:
        step_size: η > 0.
        local_steps: E ≥ 1; with E = 1 it is FedAvg under full participation.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts.
        step_rate: see `Baseline`.

    Example:
        >>> Scaffold(local_steps=3).passes
        Passes(support=3, query=3)

    Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, SCAFFOLD: Stochastic Controlled
    Averaging for Federated Learning, ICML 2020, algorithm 1.
    """

    name: ClassVar[str] = "scaffold"

    step_size: float = 0.03
    local_steps: int = 5

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and c = 0."""
        state = super().init(theta, fleet)
        return PlatformState(state.theta, {**state.memory, _CONTROL: tree.zeros_like(theta)})

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """c_i = 0."""
        return {_CONTROL: tree.zeros_like(theta)}

    def with_newcomers(self, state: PlatformState, theta: Tree, newcomers: Fleet) -> PlatformState:
        """Their c_i are 0, and the shares of all others shrink by 1 − Σw_i of the newcomers."""
        control = tree.scale(1 - newcomers.penalty, state.memory[_CONTROL])
        return PlatformState(state.theta, {**state.memory, _CONTROL: control})

    def broadcast(self, state: PlatformState) -> Tree:
        """θ, s and c."""
        return {**super().broadcast(state), **_prefixed(state.memory[_CONTROL])}

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E corrected local steps, and the new c_i."""
        joint, control = _split(theta)
        model, _ = step_sizes.split(joint)
        drift = tree.subtract(control, node[_CONTROL])  # c − c_i
        local, loss = self.trained(objective, model, data, facts, lambda _: drift)
        per_step = tree.scale(1 / (self.local_steps * self.step_size), tree.subtract(model, local))
        after = tree.subtract(per_step, drift)
        change = tree.subtract(after, node[_CONTROL])
        local = {**local, **self.learned_steps(objective, joint, data, facts)}
        sent = displacement(joint, local, facts, {"local_loss": loss})
        update = {**sent.update, **_prefixed(tree.scale(facts.weight, change))}
        return sent._replace(update=update), {_CONTROL: after}

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """FedAvg's step of θ and s, and the sum of what the nodes' c_i have changed by."""
        update, change = _split(total.update)
        control = tree.add(state.memory[_CONTROL], change)
        after, metrics = super().platform_step(state, total._replace(update=update), fleet)
        return PlatformState(after.theta, {**after.memory, _CONTROL: control}), metrics


def _prefixed(control: Tree) -> Tree:
    return {PREFIX + name: leaf for name, leaf in control.items()}


def _split(joint: Tree) -> tuple[Tree, Tree]:
    """A tree of all as {θ, s} and c, the latter under the names of θ."""
    rest = {name: leaf for name, leaf in joint.items() if not name.startswith(PREFIX)}
    control = {n.removeprefix(PREFIX): leaf for n, leaf in joint.items() if n.startswith(PREFIX)}
    return rest, control
