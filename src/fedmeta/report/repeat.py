"""A stored run as Python code that runs it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from fedmeta.algorithms import ALGORITHMS
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.serialization import to_plain
from fedmeta.data import BUILT_IN, DataSettings
from fedmeta.models.networks import ModelSettings
from fedmeta.uplink.participation import Participation

_SCALING = {"scaling": "per-feature", "scaling_from": "sources", "scaling_floor": 0.05}


def code(settings: Mapping[str, Any], seed: int) -> str:
    """The calls that make the same run, defaults left out.

    What JSON cannot hold (a network or data of the user's own) is named in a comment instead.

    Args:
        settings: as settings.json has them.
        seed: of the run.
    """
    data, model = settings["data"], settings["model"]
    algorithm = {k: v for k, v in settings["algorithm"].items() if k not in ("name", "prior")}
    known = ALGORITHMS.get(settings["algorithm"]["name"])
    lines = ["import fedmeta as fm", "", f"federation = {_federation(data, seed)}", "fm.train("]
    arguments = [
        "federation,",
        f"{_call(ModelSettings, model)}," if "class" not in model else _own(model["class"]),
        f"{_call(known, algorithm)},{_prior(settings['algorithm'])}"
        if known
        else _own(settings["algorithm"]["name"]),
        f"{_call(TrainingSettings, settings['training'])},",
    ]
    if settings.get("loss", "auto") != "auto":
        arguments.append(f"loss={settings['loss']!r},")
    scaling = {name: data[name] for name in _SCALING if name in data}
    if scaling and any(value != _SCALING[name] for name, value in scaling.items()):
        arguments.append(f"scaling=fm.fit_scaling(federation, {_values(scaling)}),")
    for name, cls in (("execution", Execution), ("participation", Participation)):
        call = _call(cls, settings.get(name, {}))
        if not call.endswith("()"):
            arguments.append(f"{name}={call},")
    return "\n".join([*lines, *(f"    {argument}" for argument in arguments), ")"])


def _federation(data: Mapping[str, Any], seed: int) -> str:
    names = {field.name for field in fields(DataSettings)}
    complete = set(data) <= names and (len(data) > 1 or data.get("name") in BUILT_IN)
    if not complete:
        return f"...  # your own: {' '.join(str(data.get('name', 'unnamed')).split())}"
    # All of it, also where it is the default: the name is what a reader looks for.
    call = _call(DataSettings, {k: v for k, v in data.items() if k != "name"})
    rest = call.removeprefix("fm.DataSettings(")
    return (
        f"fm.load(fm.DataSettings({data['name']!r}{'' if rest == ')' else ', '}{rest}, seed={seed})"
    )


def _prior(algorithm: Mapping[str, Any]) -> str:
    if not algorithm.get("prior"):
        return ""
    return f"  # with a prior model of your own, λ = {algorithm['prior'].get('strength')}"


def _own(name: Any) -> str:
    return f"...,  # your own: {' '.join(str(name).split())}"


def _values(named: Mapping[str, Any]) -> str:
    return ", ".join(repr(value) for value in named.values())


def _call(cls: type, stored: Mapping[str, Any]) -> str:
    """A dataclass as a call with what differs from its defaults."""
    arguments = []
    for field in fields(cls):
        if field.name in stored and stored[field.name] != to_plain(_default(field)):
            value = _literal(stored[field.name], _default(field))
            arguments.append(f"{field.name}={value}")
    return f"fm.{cls.__name__}({', '.join(arguments)})"


def _literal(value: Any, default: Any) -> str:
    if isinstance(value, Mapping) and is_dataclass(default):
        return _call(type(default), value)
    return repr(tuple(value) if isinstance(value, list) else value)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else None
