"""pFedMe: personalisation by Moreau envelopes (T. Dinh, Tran, Nguyen, NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedmeta.algorithms.algorithm import Contribution, NodeState, displacement
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import require, require_positive, require_whole
from fedmeta.core.objective import Adaptation, Facts, Objective, adapt
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, mini_batch, union
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Descent on the nodes' Moreau envelopes F_i(w) = min_φ L_i(φ, Dˢ ∪ D^q) + λ/2 ‖φ − w‖².

    Node:      φ ← φ − α [∇L_i(φ, Dˢ ∪ D^q) + λ(φ − w)], K times from w: about F_i's minimiser
               w ← w − ηλ(w − φ), whose ηλ(w − φ) is about η∇F_i(w); both R times from w = θ
    Platform:  θ⁺ = (1 − β)θ + β Σ w_i w / Σ w_i, the w of each node weighted by its share w_i
    Target:    φ from θ on its support set, by the same K steps

    Args:
        step_size: η > 0; ηλ is the share of the way to φ that w goes, so keep it below 1.
        local_steps: R ≥ 1, local rounds of K gradients each.
        batch_size: samples of a local round, the same for its K steps; None takes all.
        inner: K = `steps`, α = `step_size` and λ = `pull` > 0 of the steps to φ, on nodes and
            targets alike, so all parameters must move. Its `batch_size` is the targets' alone.
        mixing: β > 0.
        step_rate: see `Baseline`; learned step sizes are those of nodes as well.

    Example:
        >>> PFedMe(local_steps=2, inner=Adaptation(0.03, steps=5, pull=15.0)).passes
        Passes(support=10, query=10)

    Reference: T. Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes,
    NeurIPS 2020, algorithm 1.
    """

    name: ClassVar[str] = "pfedme"
    remedy: ClassVar[str] = "lower the step sizes, so that step_size·pull < 1 for both of them"

    step_size: float = 0.05
    local_steps: int = 5
    inner: Adaptation = Adaptation(step_size=0.03, steps=5, pull=15.0)
    mixing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("mixing", self.mixing)
        require_positive("inner.pull", self.inner.pull)  # without it w stays where it is
        require_whole("inner.steps", self.inner.steps, 1)
        require(self.inner.scope == "all", "inner.scope", self.inner.scope, '"all": w follows φ')

    @property
    def local_passes(self) -> int:
        """R·K."""
        return self.local_steps * self.inner.steps

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """R steps on the Moreau envelope and, where step sizes are learned, one in s."""
        w, steps = step_sizes.split(theta)
        factors = step_sizes.factors(self.inner, steps) if steps else None
        rule, samples = replace(self.inner, batch_size=None, factors=factors), union(data)
        loss = objective.value(w, samples, objective.pass_key(facts.key, Purpose.QUERY, 0))
        for step in range(self.local_steps):
            batch = mini_batch(samples, self.batch_size, facts.key, step)
            phi = adapt(objective, rule, w, batch, randomness.fold(facts.key, step))
            w = tree.descend(w, self.step_size * self.inner.pull, tree.subtract(w, phi))
        if steps:
            slope = self.step_gradient(objective, theta, data, facts)
            w = {**w, **tree.descend(steps, self.step_rate, slope)}
        return displacement(theta, w, facts, {"local_loss": loss}), node
