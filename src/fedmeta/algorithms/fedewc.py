"""FedEWC: elastic weight consolidation in every node's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.held_at_nodes import HeldAtNodes
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.priors import Regularizer


@dataclass(frozen=True)
class FedEWC(HeldAtNodes):
    """FedAvg whose nodes pay for moving what mattered to earlier tasks.

    Node:      θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) + λ F ⊙ (θ_i − θ_p)], E times from θ

    F is the sum of the earlier tasks' Fisher diagonals: `prior.kind` "fisher", which every node is
    sent with θ_p. A step needs ηλF below 2, parameter by parameter.

    Args:
        prior: λ, θ_p and F; None: FedAvg.
        step_size, local_steps, batch_size, inner, step_rate, server: see `FedAvg`.

    Example:
        >>> FedEWC().local_steps
        5

    Reference: Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017,
    in a federation as class-incremental comparisons have it.
    """

    name: ClassVar[str] = "fedewc"

    def term(self, prior: Regularizer, local: Tree, samples: Samples) -> Tree:
        """λ F ⊙ (θ_i − θ_p)."""
        return prior.gradient(local)
