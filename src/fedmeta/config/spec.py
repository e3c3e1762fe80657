"""The one description of a run: everything that decides what is trained, and how.

A settings file has a table for each field that is one ([data], [model], [training], [execution],
[participation], [augmentation], [uplink], [prior]), a line `algorithm = "…"` that picks one,
[inner] for the adaptation that all algorithms share, and one table [algorithms.NAME] for the
hyper-parameters of each:

    preset = "paper"
    algorithm = "admm-fedmeta"

    [data]
    name = "fashion-mnist"

    [inner]
    step_size = 0.01

    [algorithms.admm-fedmeta]
    penalty = 0.3

Command line, files, edges, reports and the code that repeats a run all go by the fields of
`RunSpec`: a new settings table is a new field, and a flag if it wants one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from typing import Any, Literal, cast, get_args

from torch import nn

from fedmeta.algorithms import ALGORITHMS, ADMMFedMeta, Algorithm
from fedmeta.algorithms.algorithm import takes_prior, with_prior
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.algorithms.path_importance import PathKeeping
from fedmeta.config.execution import Execution
from fedmeta.config.server_settings import with_server_table
from fedmeta.config.toml_files import Table, merged, subtable, with_preset
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import SettingError, nearest, require_choice
from fedmeta.core.objective import PROTOTYPES, RECOMMENDED, Adaptation
from fedmeta.core.older_settings import todays_hyper_parameters
from fedmeta.core.serialization import deserialize, serialize
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import is_code_name, load_object
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.settings import DataSettings
from fedmeta.models.losses import Loss
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import PriorSettings, load_prior
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

Importance = Literal["none", "fisher", "path"]


@dataclass(frozen=True)
class RunSpec:
    """What a run is.

    Args:
        data: where the samples come from and who holds which; None: a federation of one's own.
        model: a built-in network, "file.py:function" in its settings, or any `nn.Module`.
        algorithm: with its hyper-parameters.
        training: rounds, seed, how often to evaluate and to save.
        execution: device, dtype, path, memory budget, threads.
        participation: who is counted in a round.
        augmentation: random flips and shifts of the source nodes' images.
        uplink: what happens to contributions on their way: guard, privacy, compression.
        prior: the earlier model that the algorithm's prior is read from.
        loss: "auto", "cross-entropy", "balanced-cross-entropy", "squared-error",
            "file.py:function", or a callable (outputs, labels) → losses.
        start: parameters to start from instead of the model's own: a run or file (the key `init` of
            settings files), or a tree.
        importance: "fisher" or "path", to be stored with the run for later tasks, or "none".

    Example:
        >>> spec = RunSpec.from_dict({"algorithm": "fedavg", "training": {"rounds": 5}})
        >>> spec.algorithm.name, spec.to_dict()
        ('fedavg', {'algorithm': 'fedavg', 'training': {'rounds': 5}})
    """

    data: DataSettings | None = DataSettings()
    model: ModelSettings | nn.Module = ModelSettings()
    algorithm: Algorithm = ADMMFedMeta()
    training: TrainingSettings = TrainingSettings()
    execution: Execution = Execution()
    participation: Participation = Participation()
    augmentation: Augmentation = Augmentation()
    uplink: Uplink = Uplink()
    prior: PriorSettings = PriorSettings()
    loss: str | Loss = "auto"
    start: str | Tree | None = None
    importance: Importance = "none"

    def __post_init__(self) -> None:
        backbone = isinstance(self.model, ModelSettings) and self.model.backbone is not None
        if backbone and self.data is not None and self.data.scaling != "none":
            # A backbone brings its own preprocessing; every machine of a fleet reads it here.
            object.__setattr__(self, "data", replace(self.data, scaling="none"))

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> RunSpec:
        """From a settings table, on top of the preset that it may name; everything is checked."""
        table = with_preset(_checked_keys(table))
        for name in ("algorithms", "inner"):
            subtable(table, name)
        parts: Table = {
            name: deserialize(kind, subtable(table, name), name) for name, kind in TABLES.items()
        }
        start = table.get("start", table.get("init"))
        if start is not None and (not isinstance(start, str) or not start):
            raise SettingError(f"init is {start!r}", "give the path of a run or model file")
        if not isinstance(table.get("algorithm", ""), str):
            raise SettingError(
                f"algorithm is {table['algorithm']!r}",
                'write algorithm = "NAME" and put its settings under [algorithms.NAME]',
            )
        loss = table.get("loss", "auto")
        if not isinstance(loss, str):
            raise SettingError(f"loss is {loss!r}", "give its name")
        importance: Any = table.get("importance", "none")
        require_choice("importance", importance, get_args(Importance))
        algorithm = build_algorithm(table, str(table.get("algorithm", ADMMFedMeta.name)))
        spec = cls(**parts, algorithm=algorithm, loss=loss, start=start, importance=importance)
        return tied(spec)

    def to_dict(self) -> Table:
        """The settings table that `from_dict` makes this of; what is as by default is left out.

        Objects that no table can hold (an `nn.Module`, a tree, a prior that was not read from a
        file) are described in words, so that people see them; `from_dict` refuses those.
        """
        table: Table = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "algorithm":
                table |= _algorithm_table(value)
            elif each.name in TABLES:
                table[each.name] = _settings_table(value)
            elif value != each.default:
                table[each.name] = value if isinstance(value, str) else described(value)
        own = self.prior.teacher or (None if self.prior.given else self.algorithm.prior)
        if own is not None:
            table["prior"] = {"own": described(own)}
        return {name: value for name, value in table.items() if value != {}}

    @property
    def data_settings(self) -> DataSettings:
        """The data, which must not be a federation of one's own."""
        if self.data is None:
            raise SettingError("the data are a federation of your own", "give settings of data")
        return self.data

    @property
    def model_settings(self) -> ModelSettings:
        """The network, which must not be an object."""
        if not isinstance(self.model, ModelSettings):
            raise SettingError("the network is an object", "name it as file.py:function")
        return self.model

    def replaced(self, **changes: Any) -> RunSpec:
        """The same with other fields; those of `training` may be given as they are.

        Example:
            >>> RunSpec().replaced(rounds=5, seed=1, loss="cross-entropy").training.rounds
            5
        """
        known = {each.name for each in fields(TrainingSettings)}
        own = {name: value for name, value in changes.items() if name in known}
        rest = {name: value for name, value in changes.items() if name not in known}
        if own:
            rest["training"] = replace(rest.get("training", self.training), **own)
        return replace(self, **rest)


TABLES: dict[str, type[Any]] = {
    each.name: type(each.default)
    for each in fields(RunSpec)
    if is_dataclass(each.default) and not isinstance(each.default, Algorithm)
}
"""The fields that are tables of a settings file, and what they hold."""

KEYS = (*(each.name for each in fields(RunSpec)), "preset", "algorithms", "inner", "init")
"""What a settings file may have at its top."""


def tied(spec: RunSpec) -> RunSpec:
    """The same with an algorithm that keeps its path if that is asked for, and has its prior.

    The prior is read from the files that `spec.prior` names; a teacher is not asked yet.
    """
    if spec.importance == "path" and not isinstance(spec.algorithm, PathKeeping):
        spec = replace(spec, algorithm=_keeping_path(spec.algorithm))
    if not spec.prior.given or spec.algorithm.prior is not None:
        return spec
    if not takes_prior(spec.algorithm):
        raise SettingError(
            f"{spec.algorithm.name} takes no prior model",
            "use it with admm-fedmeta, or leave it out",
        )
    if spec.prior.teaches:  # it is asked when the samples are there, see `training.teaching`
        return spec
    prior = load_prior(spec.prior, spec.model_settings)
    return replace(spec, algorithm=with_prior(spec.algorithm, prior))


def _keeping_path(algorithm: Algorithm) -> PathKeeping:
    if type(algorithm) is not ADMMFedMeta:
        raise SettingError(
            f"{algorithm.name} keeps no path of its training",
            "use importance fisher, or admm-fedmeta",
        )
    return PathKeeping(**{each.name: getattr(algorithm, each.name) for each in fields(algorithm)})


def build_algorithm(table: Mapping[str, Any], name: str) -> Algorithm:
    """The algorithm of that name with its hyper-parameters from the table.

    Args:
        table: has [inner], [algorithms.NAME] and, for those that take one, [prior]. There
            `inner = "auto"` is the adaptation of the default, with a step that is matched to the
            network.
        name: a built-in name, or your own as "file.py:Class" or "package.module:Class".
    """
    cls = _algorithm_class(name)
    for other in table.get("algorithms", {}):
        if other not in ALGORITHMS and not is_code_name(other):
            raise SettingError(f"algorithms has no {other!r}", nearest(other, ALGORITHMS))
    own = table.get("algorithms", {}).get(name, {})
    if not isinstance(own, Mapping):
        raise SettingError(f"algorithms.{name} is {own!r}", f"make it a table [algorithms.{name}]")
    if issubclass(cls, MetaLearner):
        own = todays_hyper_parameters(own)
    automatic = own.get("inner") == "auto"
    if automatic:  # α is matched to the network
        own = {key: value for key, value in own.items() if key != "inner"}
    given_inner = not automatic and (table.get("inner") or "inner" in own)
    for each in fields(cls):
        if each.name == "inner" and given_inner:  # what is left open is as in the default
            given = each.default if isinstance(each.default, Adaptation) else Adaptation()
            asked = merged([{"inner": table.get("inner", {})}, own])
            if _by_means(asked["inner"]) and not given.by_means:  # whose α is another thing
                given = PROTOTYPES
            own = merged([{"inner": serialize(given)}, asked])
    own = with_server_table(cls, own)
    algorithm: Algorithm = deserialize(cls, own, f"algorithms.{name}")
    if automatic:
        algorithm = replace(cast(Any, algorithm), inner=RECOMMENDED)
    if not takes_prior(algorithm):
        return algorithm
    prior = deserialize(PriorSettings, subtable(table, "prior"), "prior")
    model = deserialize(ModelSettings, subtable(table, "model"), "model")
    return tied(RunSpec(model=model, algorithm=algorithm, prior=prior)).algorithm


def _by_means(inner: object) -> bool:
    """Whether a table [inner] asks for a head of class means."""
    return isinstance(inner, Mapping) and inner.get("method", "gradient") != "gradient"


def _algorithm_class(name: str) -> Any:
    if not is_code_name(name):
        if name not in ALGORITHMS:
            raise SettingError(f"algorithm {name!r} is unknown", nearest(name, ALGORITHMS))
        return ALGORITHMS[name]
    cls = load_object(name, "algorithm")
    made = isinstance(cls, type) and is_dataclass(cls)
    if not made or not all(hasattr(cls, part) for part in ("name", "node_step", "passes")):
        raise SettingError(
            f"{name} is not an algorithm",
            "name a dataclass that subclasses fedmeta.Algorithm and has a name of its own",
        )
    return cls


def layered(files: Mapping[str, Any], flags: Mapping[str, Any]) -> Table:
    """The settings table of a file and flags, on top of the preset that either names."""
    return with_preset(_checked_keys(merged([files, flags])))


def _checked_keys(table: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in table:
        if key not in KEYS:
            raise SettingError(f"settings have no key {key!r}", nearest(key, KEYS))
    return table


def _algorithm_table(algorithm: Algorithm) -> Table:
    """The lines `algorithm = …` and [algorithms.NAME]."""
    ours = type(algorithm) in (ALGORITHMS.get(algorithm.name), PathKeeping)
    name = algorithm.name if ours else described(type(algorithm))
    own = _settings_table(algorithm, leave_out=("prior",))
    table: Table = {} if name == ADMMFedMeta.name else {"algorithm": name}
    return {**table, "algorithms": {name: own}} if own else table


def _settings_table(settings: Any, leave_out: tuple[str, ...] = ()) -> Table:
    """The fields of a dataclass of settings that are not at their defaults."""
    if settings is None:
        return {"own": "a federation of your own"}
    if not is_dataclass(settings):
        return {"class": described(settings)}
    kept = [each for each in fields(settings) if each.compare and each.name not in leave_out]
    return {
        each.name: _without_none(serialize(value))
        for each in kept
        if not _is_default(value := getattr(settings, each.name), each)
    }


def _is_default(value: Any, field: Field[Any]) -> bool:
    default = field.default
    if default is MISSING and field.default_factory is not MISSING:
        default = field.default_factory()
    # An adaptation that was asked for is another thing than one that nobody asked for, though
    # it may have the same numbers: the latter is replaced where the task is regression.
    return value is default or (value == default and not isinstance(value, Adaptation))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def described(thing: Any) -> str:
    """An object in words: "file.py:name" or "package.module:name" for code, else what it is."""
    if isinstance(thing, Mapping):
        return f"{len(thing)} tensors of your own"
    if not hasattr(thing, "__qualname__"):
        thing = type(thing)
    module = thing.__module__
    if module.startswith("fedmeta_user_"):  # loaded from a file
        module = str(sys.modules[module].__file__)
    return f"{module}:{thing.__qualname__}"
