"""fedmeta: federated meta-learning for fleets of small edge devices.

>>> import fedmeta
>>> federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=12), seed=0)
>>> run = fedmeta.train(
...     federation, fedmeta.ModelSettings("mlp"), fedmeta.ADMMFedMeta(penalty=30.0), rounds=3)
>>> run
Run(admm-fedmeta, finished after 3 rounds, mse ... after 1 steps)

What users need is here; what authors of algorithms, priors and readers need is in
`fedmeta.contract`, and the paper's theory in `fedmeta.theory`.
"""

from fedmeta.algorithms import (
    ADMMFedMeta,
    Centralised,
    FedAvg,
    FedMeta,
    LocalOnly,
    PerFedAvg,
    Reptile,
)
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError, FedmetaError
from fedmeta.core.meta_gradient import InverseSchedule
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import versions
from fedmeta.data import DataSettings, Federation, Node, Scaling, Task, federate, fit_scaling, load
from fedmeta.data.augmentation import Augmentation
from fedmeta.evaluation.evaluate import Evaluation, evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.export import export_onnx
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import (
    Bregman,
    OutputKL,
    PriorSettings,
    SquaredEuclidean,
    SquaredMahalanobis,
    federated_fisher,
)
from fedmeta.report import write_report
from fedmeta.studies.compare import compare
from fedmeta.studies.sequences import TaskSequence, TaskSettings, measured
from fedmeta.studies.sequences import run_sequence as sequence
from fedmeta.studies.tune import grid, tune
from fedmeta.training.callbacks import Callback, StopTraining
from fedmeta.training.many import train_many
from fedmeta.training.run import Run
from fedmeta.training.run_importance import store_importance
from fedmeta.training.simulation import Simulation
from fedmeta.training.tracking import MLflow, TensorBoard
from fedmeta.training.train import train, train_spec
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink

__all__ = [
    "ADMMFedMeta",
    "Adaptation",
    "Augmentation",
    "Bregman",
    "Callback",
    "Centralised",
    "Compression",
    "DataSettings",
    "DivergedError",
    "Evaluation",
    "Execution",
    "FedAvg",
    "FedMeta",
    "Federation",
    "FedmetaError",
    "Guard",
    "InverseSchedule",
    "LocalOnly",
    "MLflow",
    "MetaModel",
    "ModelSettings",
    "Node",
    "OutputKL",
    "Participation",
    "PerFedAvg",
    "PriorSettings",
    "Privacy",
    "Reptile",
    "Run",
    "RunSpec",
    "Scaling",
    "Simulation",
    "SquaredEuclidean",
    "SquaredMahalanobis",
    "StopTraining",
    "Task",
    "TaskSequence",
    "TaskSettings",
    "TensorBoard",
    "TrainingSettings",
    "Uplink",
    "compare",
    "evaluate_model",
    "export_onnx",
    "federate",
    "federated_fisher",
    "fit_scaling",
    "grid",
    "interval",
    "load",
    "measured",
    "sequence",
    "store_importance",
    "train",
    "train_many",
    "train_spec",
    "tune",
    "versions",
    "write_report",
]
