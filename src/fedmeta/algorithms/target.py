"""TARGET: nodes learn from inputs that were made from the earlier model (ICCV 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.held_at_nodes import HeldAtNodes
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.priors import Regularizer


@dataclass(frozen=True)
class Target(HeldAtNodes):
    """FedAvg whose nodes distil the earlier model on inputs that the platform made from it.

    Node:      θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) + λ∇ mean_x̂ KL(p_{θ_p}(x̂) ‖ p_{θ_i}(x̂))]

    x̂ is what `priors.generated` finds without any data; every node is sent θ_p and x̂. The paper
    trains a generator network for it, with the statistics of batch normalisation, which models of
    a federation of a dozen samples per node do not have; here inputs are descended on directly.

    Args:
        prior: λ, θ_p and x̂; None: FedAvg.
        step_size, local_steps, batch_size, inner, step_rate, server: see `FedAvg`.

    Example:
        >>> Target().local_steps
        5

    Reference: Zhang, Chen, Zhuang, Lyu, TARGET: Federated class-continual learning via
    exemplar-free distillation, ICCV 2023.
    """

    name: ClassVar[str] = "target"

    def term(self, prior: Regularizer, local: Tree, samples: Samples) -> Tree:
        """λ∇KL on the generated inputs."""
        return prior.gradient(local)
