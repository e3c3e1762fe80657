"""fedmeta: federated meta-learning for fleets of small edge devices.

>>> import fedmeta
>>> federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=12), seed=0)
>>> run = fedmeta.train(
...     federation, fedmeta.ModelSettings("mlp"), fedmeta.ADMMFedMeta(penalty=30.0),
...     fedmeta.TrainingSettings(rounds=3))
>>> run.summary["status"]
'finished'
"""

from fedmeta.algorithms import (
    ADMMFedMeta,
    Algorithm,
    Centralised,
    Contribution,
    FedAvg,
    FedMeta,
    Fleet,
    LocalOnly,
    PerFedAvg,
    PlatformState,
    Reptile,
)
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError, FedmetaError
from fedmeta.core.meta_gradient import InverseSchedule
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes
from fedmeta.data import DataSettings, Federation, Node, Scaling, Task, federate, fit_scaling, load
from fedmeta.data.augmentation import Augmentation
from fedmeta.evaluation.evaluate import Evaluation, evaluate_model
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import (
    Bregman,
    OutputKL,
    Regularizer,
    SquaredEuclidean,
    SquaredMahalanobis,
    federated_fisher,
)
from fedmeta.training.callbacks import Callback
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation

__all__ = [
    "ADMMFedMeta",
    "Adaptation",
    "Algorithm",
    "Augmentation",
    "Bregman",
    "Callback",
    "Centralised",
    "Contribution",
    "DataSettings",
    "DivergedError",
    "Evaluation",
    "Execution",
    "Facts",
    "FedAvg",
    "FedMeta",
    "Federation",
    "FedmetaError",
    "Fleet",
    "InverseSchedule",
    "LocalOnly",
    "MetaModel",
    "ModelSettings",
    "Node",
    "Objective",
    "OutputKL",
    "Participation",
    "Passes",
    "PerFedAvg",
    "PlatformState",
    "Regularizer",
    "Reptile",
    "Run",
    "Scaling",
    "SquaredEuclidean",
    "SquaredMahalanobis",
    "Task",
    "TrainingSettings",
    "evaluate_model",
    "federate",
    "federated_fisher",
    "fit_scaling",
    "load",
    "train",
]
