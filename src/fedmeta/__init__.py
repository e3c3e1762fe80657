"""fedmeta: federated meta-learning for fleets of small edge devices.

>>> import fedmeta
>>> federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=12), seed=0)
>>> run = fedmeta.train(
...     federation, fedmeta.ModelSettings("mlp"), fedmeta.ADMMFedMeta(penalty=30.0), rounds=3)
>>> run
Run(admm-fedmeta, finished after 3 rounds, mse ... after 1 step)

What users need is here; what authors of algorithms, priors and readers need is in
`fedmeta.contract`, and the paper's theory in `fedmeta.theory`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmeta.algorithms import (
        ADMMFedMeta,
        Centralised,
        Ditto,
        FedADMM,
        FedAvg,
        FedBABU,
        FedDyn,
        FedMeta,
        FedProx,
        FedRep,
        LocalOnly,
        PerFedAvg,
        PFedMe,
        PlatformOptimizer,
        Reptile,
        Scaffold,
    )
    from fedmeta.config.execution import Execution
    from fedmeta.config.spec import RunSpec
    from fedmeta.config.training import TrainingSettings
    from fedmeta.core.errors import DivergedError, FedmetaError
    from fedmeta.core.meta_gradient import InverseSchedule
    from fedmeta.core.objective import Adaptation
    from fedmeta.core.versions import versions
    from fedmeta.data import (
        DataSettings,
        Federation,
        Node,
        Scaling,
        Task,
        federate,
        fit_scaling,
        load,
    )
    from fedmeta.data.augmentation import Augmentation
    from fedmeta.evaluation.evaluate import evaluate_model
    from fedmeta.evaluation.intervals import interval
    from fedmeta.evaluation.result import Evaluation
    from fedmeta.export import export_c, export_onnx
    from fedmeta.models.frozen import freeze_norms
    from fedmeta.models.lora import lora
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
    from fedmeta.studies.comparison import Comparison
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
    "Comparison",
    "Compression",
    "DataSettings",
    "Ditto",
    "DivergedError",
    "Evaluation",
    "Execution",
    "FedADMM",
    "FedAvg",
    "FedBABU",
    "FedDyn",
    "FedMeta",
    "FedProx",
    "FedRep",
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
    "PFedMe",
    "Participation",
    "PerFedAvg",
    "PlatformOptimizer",
    "PriorSettings",
    "Privacy",
    "Reptile",
    "Run",
    "RunSpec",
    "Scaffold",
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
    "export_c",
    "export_onnx",
    "federate",
    "federated_fisher",
    "fit_scaling",
    "freeze_norms",
    "grid",
    "interval",
    "load",
    "lora",
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


_MODULES = {
    "fedmeta.algorithms": (
        "ADMMFedMeta Centralised Ditto FedADMM FedAvg FedBABU FedDyn FedMeta FedProx "
        "FedRep LocalOnly PerFedAvg PFedMe PlatformOptimizer Reptile Scaffold"
    ),
    "fedmeta.config.execution": "Execution",
    "fedmeta.config.spec": "RunSpec",
    "fedmeta.config.training": "TrainingSettings",
    "fedmeta.core.errors": "DivergedError FedmetaError",
    "fedmeta.core.meta_gradient": "InverseSchedule",
    "fedmeta.core.objective": "Adaptation",
    "fedmeta.core.versions": "versions",
    "fedmeta.data": "DataSettings Federation Node Scaling Task federate fit_scaling load",
    "fedmeta.data.augmentation": "Augmentation",
    "fedmeta.evaluation.evaluate": "evaluate_model",
    "fedmeta.evaluation.intervals": "interval",
    "fedmeta.evaluation.result": "Evaluation",
    "fedmeta.export": "export_c export_onnx",
    "fedmeta.models.frozen": "freeze_norms",
    "fedmeta.models.lora": "lora",
    "fedmeta.models.meta_model": "MetaModel",
    "fedmeta.models.networks": "ModelSettings",
    "fedmeta.priors": (
        "Bregman OutputKL PriorSettings SquaredEuclidean SquaredMahalanobis federated_fisher"
    ),
    "fedmeta.report": "write_report",
    "fedmeta.studies.compare": "compare",
    "fedmeta.studies.comparison": "Comparison",
    "fedmeta.studies.tune": "grid tune",
    "fedmeta.training.callbacks": "Callback StopTraining",
    "fedmeta.training.many": "train_many",
    "fedmeta.training.run": "Run",
    "fedmeta.training.run_importance": "store_importance",
    "fedmeta.training.simulation": "Simulation",
    "fedmeta.training.tracking": "MLflow TensorBoard",
    "fedmeta.training.train": "train train_spec",
    "fedmeta.uplink.compression": "Compression",
    "fedmeta.uplink.guard": "Guard",
    "fedmeta.uplink.participation": "Participation",
    "fedmeta.uplink.privacy": "Privacy",
    "fedmeta.uplink.uplink": "Uplink",
    "fedmeta.studies.sequences": "TaskSequence TaskSettings measured",
}
_HOMES = {name: (module, name) for module, names in _MODULES.items() for name in names.split()}
_HOMES["sequence"] = ("fedmeta.studies.sequences", "run_sequence")


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package, loaded when it is first asked for.

    So that `fedmeta --help` need not wait for torch.
    """
    home, own = _HOMES.get(name, (f"fedmeta.{name}", ""))
    if name not in _HOMES and name.startswith("__"):
        raise AttributeError(f"module 'fedmeta' has no attribute {name!r}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name != home:
            raise
        raise AttributeError(f"module 'fedmeta' has no attribute {name!r}") from None
    found = getattr(module, own) if own else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, whether they are loaded or not."""
    return sorted({*globals(), *__all__})
