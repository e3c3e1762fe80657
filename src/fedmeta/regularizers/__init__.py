"""What ties the meta-model to a prior model θ_p. Only the platform computes it.

F(θ) = Σ w_i L_i(φ_i(θ), D^q_i) + λ D(θ, θ_p),   D a Bregman divergence, or one between outputs.

| divergence | of | proximal step |
|---|---|---|
| `SquaredEuclidean` | the parameters | closed |
| `SquaredMahalanobis` | the parameters, weighted by importance (EWC, SI) | closed |
| `GeneralisedKL`, `ItakuraSaito` | a positive function of the parameters | none |
| `Bregman` | the parameters, by any convex h | none |
| `OutputKL` | predicted probabilities on unlabelled inputs (distillation) | none |

All but `OutputKL` take a θ_p that has only some of the model's tensors, a backbone for instance:
the others are then free.
"""

from fedmeta.regularizers.base import Proximal, Regularizer, described, with_proximal
from fedmeta.regularizers.bregman import Bregman, ConvexityWarning
from fedmeta.regularizers.importance import (
    Path,
    fisher,
    fisher_contribution,
    path_importance,
    path_start,
    path_step,
)
from fedmeta.regularizers.outputs import OutputKL
from fedmeta.regularizers.positive import GeneralisedKL, ItakuraSaito, PositiveParameters
from fedmeta.regularizers.quadratic import SquaredEuclidean, SquaredMahalanobis

__all__ = [
    "Bregman",
    "ConvexityWarning",
    "GeneralisedKL",
    "ItakuraSaito",
    "OutputKL",
    "Path",
    "PositiveParameters",
    "Proximal",
    "Regularizer",
    "SquaredEuclidean",
    "SquaredMahalanobis",
    "described",
    "fisher",
    "fisher_contribution",
    "path_importance",
    "path_start",
    "path_step",
    "with_proximal",
]
