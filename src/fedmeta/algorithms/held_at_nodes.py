"""What FedEWC, FedLwF and TARGET share: nodes that hold what they train near an earlier model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from fedmeta.algorithms.algorithm import Contribution, Fleet, NodeState, PlatformState, displacement
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core import step_sizes
from fedmeta.core.objective import RECOMMENDED, Adaptation, Facts, Objective
from fedmeta.core.sample_sets import NodeData, Samples, union
from fedmeta.core.tree import Tree
from fedmeta.priors import Regularizer


@dataclass(frozen=True)
class HeldAtNodes(FedAvg):
    """FedAvg whose local loss has a term for the earlier model, which every node must be sent.

    Node:      θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) + λ∇D(θ_i, θ_p)], E times from θ
    Platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i

    Args:
        prior: λ, θ_p and the divergence, or None: then it is FedAvg.
    """

    inner: Adaptation = RECOMMENDED
    local_steps: int = 5
    prior: Regularizer | None = None

    @abstractmethod
    def term(self, prior: Regularizer, local: Tree, samples: Samples) -> Tree:
        """λ∇D(θ_i, θ_p), as a node computes it.

        Args:
            prior: on the device of the parameters.
            local: θ_i.
            samples: the node's own.
        """

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ, with a look at the prior's values."""
        if self.prior is not None:
            self.prior.checked(theta)
        return super().init(theta, fleet)

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local steps on the loss with its term."""
        if self.prior is None or self.prior.strength == 0:  # λ = 0 is no prior, bit for bit
            return super().node_step(objective, theta, node, data, facts)
        model, _ = step_sizes.split(theta)
        prior, samples = self.prior.fitted(model), union(data)

        def pull(local: Tree) -> Tree:
            return self.term(prior, local, samples)

        local, loss = self.trained(objective, model, data, facts, pull)
        local = {**local, **self.learned_steps(objective, theta, data, facts)}
        return displacement(theta, local, facts, {"local_loss": loss}), node
