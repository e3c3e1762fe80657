"""What ties the meta-model to a prior model θ_p. Only the platform computes it.

F(θ) = Σ w_i L_i(φ_i(θ), D^q_i) + λ D(θ, θ_p),   D a Bregman divergence, or one between outputs.

| divergence | of | proximal step |
|---|---|---|
| `SquaredEuclidean` | the parameters | closed |
| `SquaredMahalanobis` | the parameters, weighted by importance (EWC, SI) | closed |
| `GeneralisedKL`, `ItakuraSaito` | a positive function of the parameters | none |
| `Bregman` | the parameters, by any convex h | none |
| `OutputKL` | predicted probabilities on unlabelled inputs (distillation) | none |
| `TeacherKL` | the same to what a teacher of any shape has answered | none |

All but the last two take a θ_p that has only some of the model's tensors, a backbone for instance:
the others are then free. `settings` knows them by name and reads the table [prior], and
`importance` estimates how much each parameter mattered, and keeps that in files.
"""

from fedmeta.priors.bregman import Bregman, ConvexityWarning
from fedmeta.priors.importance import (
    TrainingPath,
    federated_fisher,
    fisher,
    fisher_contribution,
    path_importance,
    path_start,
    path_step,
    read_importance,
    write_importance,
)
from fedmeta.priors.outputs import OutputKL
from fedmeta.priors.positive import GeneralisedKL, ItakuraSaito, PositiveParameters
from fedmeta.priors.quadratic import SquaredEuclidean, SquaredMahalanobis
from fedmeta.priors.registry import KINDS, regularizer
from fedmeta.priors.regularizer import Proximal, Regularizer, described, with_proximal
from fedmeta.priors.settings import PriorSettings, load_prior, raw_samples
from fedmeta.priors.teacher import TeacherKL

__all__ = [
    "KINDS",
    "Bregman",
    "ConvexityWarning",
    "GeneralisedKL",
    "ItakuraSaito",
    "OutputKL",
    "PositiveParameters",
    "PriorSettings",
    "Proximal",
    "Regularizer",
    "SquaredEuclidean",
    "SquaredMahalanobis",
    "TeacherKL",
    "TrainingPath",
    "described",
    "federated_fisher",
    "fisher",
    "fisher_contribution",
    "load_prior",
    "path_importance",
    "path_start",
    "path_step",
    "raw_samples",
    "read_importance",
    "regularizer",
    "with_proximal",
    "write_importance",
]
