"""Ditto: FedAvg, and on every node a model of its own tied to θ (Li et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import require
from fedmeta.core.objective import Adaptation, Facts, Objective, pulled
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, mini_batch, union
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A global model by FedAvg, and personal models v_i that are pulled to it.

    Node:      θ_i ← θ_i − η ∇L_i(θ_i, Dˢ ∪ D^q), E times from θ
               v_i ← v_i − η [∇L_i(v_i, Dˢ ∪ D^q) + λ(v_i − θ)], E times from its last v_i
    Platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i
    Target:    v   ← v − α [∇L(v, Dˢ) + λ(v − θ)], `inner.steps` times from θ

    The v_i of sources influence neither θ nor any target, which has no v_i of its own to begin
    with. So they are trained only where `personal` asks for them: θ and all numbers of targets are
    the same with and without, at half the gradients. What tells Ditto from FedAvg at a target is
    then the pull λ; λ = 0 is FedAvg.

    A v_i is kept in the node's state (slot "personal") and, like all of that, changes only in
    rounds in which the node is counted. It starts as θ¹.

    Args:
        step_size: η > 0.
        local_steps: E ≥ 1.
        batch_size: samples per local step; None takes all of the node's samples.
        inner: how a target adapts; its `pull` is λ, of the v_i as well.
        personal: train v_i on the sources too, and log their mean loss as `personal_loss`.
        step_rate: see `Baseline`.

    Example:
        >>> Ditto(local_steps=5).passes, Ditto(local_steps=5, personal=True).passes
        (Passes(support=5, query=5), Passes(support=10, query=10))

    Reference: Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through
    Personalization, ICML 2021, algorithm 1.
    """

    name: ClassVar[str] = "ditto"

    inner: Adaptation = Adaptation(step_size=0.1, steps=10, pull=1.0)
    personal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isinstance(self.personal, bool), "personal", self.personal, "true or false")

    @property
    def local_passes(self) -> int:
        """E for θ_i, and as many for v_i."""
        return self.local_steps * (2 if self.personal else 1)

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """v_i = θ¹, where it is trained."""
        return {"personal": dict(theta)} if self.personal else {}

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """FedAvg's step of θ_i, then that of v_i."""
        contribution, _ = super().node_step(objective, theta, node, data, facts)
        if not self.personal:
            return contribution, node
        model, _ = step_sizes.split(theta)
        samples, own, losses = union(data), node["personal"], []
        key = randomness.fold(facts.key, Purpose.PERSONAL)
        for step in range(self.local_steps):
            batch = mini_batch(samples, self.batch_size, key, step)
            pass_key = objective.pass_key(key, Purpose.SUPPORT, step)
            gradient, loss = objective.gradient(own, batch, pass_key)
            losses.append(loss)
            own = tree.descend(own, self.step_size, pulled(gradient, self.inner.pull, own, model))
        metrics = {**contribution.metrics, "personal_loss": facts.weight * losses[0]}
        return contribution._replace(metrics=metrics), {"personal": own}
