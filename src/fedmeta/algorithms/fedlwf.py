"""FedLwF: learning without forgetting in every node's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.held_at_nodes import HeldAtNodes
from fedmeta.core.errors import SettingError
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.priors import OutputKL, Regularizer


@dataclass(frozen=True)
class FedLwF(HeldAtNodes):
    """FedAvg whose nodes distil the earlier model on their own samples of the new task.

    Node:      θ_i ← θ_i − η [∇L_i(θ_i, Dˢ ∪ D^q) + λ∇ mean_x KL(p_{θ_p}(x) ‖ p_{θ_i}(x))]

    x are the node's samples, and probabilities those of the earlier tasks' classes alone: what
    these samples really are is the new task's to say. Nodes are sent θ_p; its labels and samples
    are not needed.

    Args:
        prior: λ and θ_p in an `OutputKL`, whose own inputs are not looked at; None: FedAvg.
        step_size, local_steps, batch_size, inner, step_rate, server: see `FedAvg`.

    Example:
        >>> FedLwF().local_steps
        5

    Reference: Li, Hoiem, Learning without forgetting, ECCV 2016, in a federation as
    class-incremental comparisons have it.
    """

    name: ClassVar[str] = "fedlwf"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior is not None and not isinstance(self.prior, OutputKL):
            raise SettingError(
                f"fedlwf compares outputs, its prior is a {type(self.prior).__name__}",
                "learn a sequence with --method fedlwf",
            )

    def term(self, prior: Regularizer, local: Tree, samples: Samples) -> Tree:
        """λ∇KL on the node's own samples."""
        assert isinstance(prior, OutputKL)
        return prior.on(samples.inputs, samples.mask).gradient(local)
