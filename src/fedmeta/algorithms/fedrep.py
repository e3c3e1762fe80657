"""FedRep: a shared body under a head of each node's own (Collins et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import Contribution, NodeState, displacement
from fedmeta.algorithms.head_and_body import HeadAndBody
from fedmeta.core import step_sizes, tree
from fedmeta.core.errors import require_whole
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class FedRep(HeadAndBody):
    """A body B learned by all nodes, and a head h_i that stays on its node.

    Node:      h_i ← h_i − η ∇_h L_i(B, h_i; Dˢ ∪ D^q), τ_h times from its last h_i
               B_i ← B_i − η ∇_B L_i(B_i, h_i; Dˢ ∪ D^q), τ_b times from B
    Platform:  B⁺  = B + Σ w_i (B_i − B) / Σ w_i
    Target:    h   ← h − α ∇_h L(B, h; Dˢ), `inner.steps` times from the initial head h⁰

    The head of θ is h⁰ for good: sources begin with it, and so does a target. h_i is kept in the
    node's state (slot "head") and, like all of that, changes only in rounds in which the node is
    counted.

    Args:
        step_size: η > 0.
        local_steps: τ_b ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target fits a head; its `scope` says what the head is, for nodes as well.
        head_steps: τ_h ≥ 1.
        step_rate: see `Baseline`; learned step sizes are those of targets, from B and h⁰.

    Example:
        >>> FedRep(head_steps=5, local_steps=2).passes
        Passes(support=7, query=7)

    Reference: Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for
    Personalized Federated Learning, ICML 2021, algorithm 1.
    """

    name: ClassVar[str] = "fedrep"

    head_steps: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("head_steps", self.head_steps, 1)

    @property
    def local_passes(self) -> int:
        """τ_h + τ_b."""
        return self.head_steps + self.local_steps

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """h⁰."""
        return {"head": {name: theta[name] for name in theta if name in self.head(theta)}}

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """τ_h steps of the head, τ_b of the body and, where step sizes are learned, one in s."""
        model, steps = step_sizes.split(theta)
        head, body, samples = self.head(model), self.body(model), union(data)
        first, second = range(self.head_steps), range(self.head_steps, self.local_passes)
        local = {**model, **node["head"]}
        local, losses = self.descent(objective, head, local, samples, first, facts.key)
        local, _ = self.descent(objective, body, local, samples, second, facts.key)
        sent = {name: local[name] if name in body else leaf for name, leaf in model.items()}
        if steps:
            slope = self.step_gradient(objective, theta, data, facts)
            sent = {**sent, **tree.descend(steps, self.step_rate, slope)}
        state: NodeState = {"head": {name: local[name] for name in node["head"]}}
        return displacement(theta, sent, facts, {"local_loss": losses[0]}), state
