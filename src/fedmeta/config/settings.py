"""All settings of a run: defaults, then a preset, then a TOML file, then flags.

A settings file has the tables [data], [model], [training], [execution], [participation],
[augmentation], [uplink] and [prior], a line `algorithm = "…"` that picks one, [inner] for the
adaptation that all algorithms share, one table [algorithms.NAME] for the hyper-parameters of each,
`init` for a model to start from, and `importance` for what to store with the run for a later task's
[prior]:

    preset = "paper"
    algorithm = "admm-fedmeta"

    [data]
    name = "fashion-mnist"

    [inner]
    step_size = 0.01

    [algorithms.admm-fedmeta]
    penalty = 0.3
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from fedmeta.algorithms import ALGORITHMS, ADMMFedMeta, Algorithm
from fedmeta.algorithms.path_importance import PathKeeping
from fedmeta.config.execution import Execution
from fedmeta.config.presets import preset
from fedmeta.core.errors import SettingError, nearest, require_choice
from fedmeta.core.objective import Adaptation
from fedmeta.core.serialization import from_plain, to_plain
from fedmeta.core.user_code import load_object, names_code
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.settings import BY_CLASS, DataSettings
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import PriorSettings, load_prior
from fedmeta.training.job import TrainingSettings
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

Table = dict[str, Any]

TABLES = {
    "data": DataSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "execution": Execution,
    "participation": Participation,
    "augmentation": Augmentation,
    "uplink": Uplink,
}
_OTHERS = ("preset", "algorithm", "algorithms", "inner", "prior", "loss", "init", "importance")
_KEYS = (*TABLES, *_OTHERS)
IMPORTANCE = ("none", "fisher", "path")


@dataclass(frozen=True)
class Settings:
    """What a run is: its parts, each with settings of its own, and the name of the loss.

    And `init`: the run or file whose parameters it starts from, instead of the model's own;
    `prior`: what the algorithm's prior was read from; `importance`: "fisher" or "path", to be
    stored with the run, or "none".
    """

    data: DataSettings
    model: ModelSettings
    algorithm: Algorithm
    training: TrainingSettings
    execution: Execution
    participation: Participation
    augmentation: Augmentation
    loss: str
    init: str | None = None
    prior: PriorSettings = field(default_factory=PriorSettings)
    importance: str = "none"
    uplink: Uplink = field(default_factory=Uplink)


def read_toml(path: Path) -> Table:
    """Read a settings file, or say what is wrong with it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingError(f"there is no settings file {path}", "check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"settings file {path} cannot be read ({error})", "check it") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(
            f"settings file {path} is not valid TOML ({error})", "mend it"
        ) from error


def merged(layers: Sequence[Mapping[str, Any]]) -> Table:
    """One table from several, later ones winning key by key.

    Example:
        >>> merged([{"data": {"nodes": 50, "name": "digits"}}, {"data": {"nodes": 10}}])
        {'data': {'nodes': 10, 'name': 'digits'}}
    """
    table: Table = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                before = table.get(key)
                table[key] = merged([before if isinstance(before, Mapping) else {}, value])
            else:
                table[key] = value
    return table


def layered(files: Mapping[str, Any], flags: Mapping[str, Any]) -> Table:
    """The settings table of a file and flags, on top of the preset that either names."""
    given = merged([files, flags])
    for key in given:
        if key not in _KEYS:
            raise SettingError(f"settings have no key {key!r}", nearest(key, _KEYS))
    if "preset" not in given:
        return given
    own = subtable(given, "data")
    name = own.get("name", DataSettings().name)
    table = preset(given["preset"], name)
    # Where nodes are not drawn by class, what a preset says of drawing them has no place.
    if "node" in own or name == "sinusoid":
        del table["data"]["partition"]
    drawn_by = own.get("partition", table["data"].get("partition"))
    if drawn_by not in BY_CLASS or "samples" in own:
        table["data"].pop("samples_per_class", None)
    return merged([table, given])


def subtable(table: Mapping[str, Any], name: str) -> Table:
    """The table [name] within a table, empty where there is none.

    Example:
        >>> subtable({"data": {"nodes": 10}}, "data"), subtable({}, "inner")
        ({'nodes': 10}, {})
    """
    found = table.get(name, {})
    if not isinstance(found, Mapping):
        raise SettingError(f"{name} is {found!r}", f"make it a table [{name}]")
    return dict(found)


def build_settings(table: Mapping[str, Any]) -> Settings:
    """Settings from a table as `layered` returns it, everything checked.

    Example:
        >>> build_settings({"algorithm": "fedavg", "training": {"rounds": 5}}).algorithm.name
        'fedavg'
    """
    for name in ("algorithms", "inner", "prior"):
        subtable(table, name)
    parts: Table = {
        name: from_plain(cls, subtable(table, name), name) for name, cls in TABLES.items()
    }
    init = table.get("init")
    if init is not None and (not isinstance(init, str) or not init):
        raise SettingError(f"init is {init!r}", "give the path of a run or model file")
    if not isinstance(table.get("algorithm", ""), str):
        raise SettingError(
            f"algorithm is {table['algorithm']!r}",
            'write algorithm = "NAME" and put its settings under [algorithms.NAME]',
        )
    loss = table.get("loss", "auto")
    if not isinstance(loss, str):
        raise SettingError(f"loss is {loss!r}", "give its name")
    importance = table.get("importance", "none")
    require_choice("importance", importance, IMPORTANCE)
    algorithm = build_algorithm(table, str(table.get("algorithm", ADMMFedMeta.name)))
    prior = from_plain(PriorSettings, table.get("prior", {}), "prior")
    if not isinstance(algorithm, ADMMFedMeta):
        if prior.model is not None:
            raise SettingError(
                f"{algorithm.name} takes no prior model",
                "use it with admm-fedmeta, or leave it out",
            )
        if importance == "path":
            raise SettingError(
                f"{algorithm.name} keeps no path of its training",
                "use importance fisher, or admm-fedmeta",
            )
    return Settings(
        **parts, algorithm=algorithm, loss=loss, init=init, prior=prior, importance=importance
    )


def build_algorithm(table: Mapping[str, Any], name: str) -> Algorithm:
    """The algorithm of that name with its hyper-parameters from the table.

    Args:
        table: has [inner], [algorithms.NAME] and, for those that take one, [prior].
        name: a built-in name, or your own as "file.py:Class" or "package.module:Class".
    """
    if names_code(name):
        cls = load_object(name, "algorithm")
        made = isinstance(cls, type) and is_dataclass(cls)
        if not made or not all(hasattr(cls, part) for part in ("name", "node_step", "passes")):
            raise SettingError(
                f"{name} is not an algorithm",
                "name a dataclass that subclasses fedmeta.Algorithm and has a name of its own",
            )
    elif name in ALGORITHMS:
        cls = ALGORITHMS[name]
    else:
        raise SettingError(f"algorithm {name!r} is unknown", nearest(name, ALGORITHMS))
    for other in table.get("algorithms", {}):
        if other not in ALGORITHMS and not names_code(other):
            raise SettingError(f"algorithms has no {other!r}", nearest(other, ALGORITHMS))
    own = table.get("algorithms", {}).get(name, {})
    if not isinstance(own, Mapping):
        raise SettingError(f"algorithms.{name} is {own!r}", f"make it a table [algorithms.{name}]")
    given_inner = table.get("inner") or "inner" in own
    for each in fields(cls):
        if each.name == "inner" and given_inner:  # what is left open is as in the default
            given = each.default if isinstance(each.default, Adaptation) else Adaptation()
            own = merged([{"inner": to_plain(given)}, {"inner": table.get("inner", {})}, own])
    if cls is ADMMFedMeta and table.get("importance") == "path":
        cls = PathKeeping
    algorithm: Algorithm = from_plain(cls, own, f"algorithms.{name}")
    prior = from_plain(PriorSettings, table.get("prior", {}), "prior")
    if isinstance(algorithm, ADMMFedMeta) and prior.model is not None:
        network = from_plain(ModelSettings, subtable(table, "model"), "model")
        return replace(algorithm, prior=load_prior(prior, network))
    return algorithm
