"""FedBABU: body aggregation and body update (Oh, Kim, Yun, ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedmeta.algorithms.algorithm import Contribution, NodeState, PlatformState, displacement
from fedmeta.algorithms.head_and_body import HeadAndBody
from fedmeta.core import step_sizes, tree
from fedmeta.core.errors import SettingError, require_choice
from fedmeta.core.objective import Adaptation, Facts, Objective
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class FedBABU(HeadAndBody):
    """FedAvg of the body B under a head h⁰ that stays as it was drawn; targets fine-tune.

    Node:      B_i ← B_i − η ∇_B L_i(B_i, h⁰; Dˢ ∪ D^q), E times from B
    Platform:  B⁺  = B + Σ w_i (B_i − B) / Σ w_i
    Target:    h   ← h − α ∇_h L(B, h; Dˢ), `inner.steps` times from h⁰; or B and h alike

    Args:
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target fine-tunes; its `scope` says what the head is, for nodes as well.
        fine_tuned: what moves at a target: the "head", or "all".
        step_rate: see `Baseline`; step sizes are learned for the head alone.

    Example:
        >>> FedBABU(local_steps=5).passes
        Passes(support=5, query=5)

    Reference: Oh, Kim, Yun, FedBABU: Toward Enhanced Representation for Federated Image
    Classification, ICLR 2022, algorithm 1.
    """

    name: ClassVar[str] = "fedbabu"

    fine_tuned: Literal["head", "all"] = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("fine_tuned", self.fine_tuned, ("head", "all"))
        if self.fine_tuned == "all" and self.inner.learned != "none":
            raise SettingError(
                "fine_tuned is 'all', but step sizes are learned for the head alone",
                'leave inner.learned out, or fine-tune the "head"',
            )

    def adaptation(self, state: PlatformState) -> Adaptation:
        """By `inner`, of the head or of everything."""
        rule = super().adaptation(state)
        return replace(rule, scope="all") if self.fine_tuned == "all" else rule

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E steps of the body and, where step sizes are learned, one in s."""
        model, steps = step_sizes.split(theta)
        body, order = self.body(model), range(self.local_steps)
        local, losses = self.descent(objective, body, model, union(data), order, facts.key)
        if steps:
            slope = self.step_gradient(objective, theta, data, facts)
            local = {**local, **tree.descend(steps, self.step_rate, slope)}
        return displacement(theta, local, facts, {"local_loss": losses[0]}), node
