"""A stored run as Python code that runs it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from fedmeta.algorithms import ALGORITHMS
from fedmeta.config.server_settings import as_stored_now
from fedmeta.config.spec import TABLES, RunSpec
from fedmeta.config.toml_files import subtable
from fedmeta.core.serialization import serialize
from fedmeta.data import BUILT_IN, DataSettings


def code(settings: Mapping[str, Any], spec: Mapping[str, Any] | None = None) -> str:
    """The call that makes the same run: an argument for each field of its `RunSpec`.

    Defaults are left out. What JSON cannot hold (a network or data of the user's own) is named in a
    comment instead.

    Args:
        settings: the resolved ones, as settings.json has them.
        spec: the description of the run as it was asked for; None: of a run of an older version,
            which has none.
    """
    asked = spec or {}
    lines = []
    for each in fields(RunSpec):
        text = _argument(each.name, settings, asked)
        if text is not None:
            keyword = "" if each.name in ("data", "model", "algorithm") else f"{each.name}="
            lines.append(f"    {keyword}{text}")
    return "\n".join(["import fedmeta as fm", "", "fm.train(", *lines, ")"])


def _argument(name: str, settings: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """One argument with its comma, and a comment if it cannot be written; None: it is a default."""
    if name == "data":
        return _data(settings["data"])
    if name == "algorithm":
        return _algorithm(settings, asked)
    if name == "prior":
        return _prior(settings, asked)
    if name == "model" and "class" in settings["model"]:
        return _own(settings["model"]["class"])
    if name in TABLES:
        stored = {k: v for k, v in settings.get(name, {}).items() if k != "promise"}
        call = _call(TABLES[name], stored)
        return f"{call}," if name == "model" or not call.endswith("()") else None
    value = settings.get(name, asked.get(name))
    default = next(each.default for each in fields(RunSpec) if each.name == name)
    if value is None or value == default:
        return None
    known = name != "start" or not str(value).endswith("of your own")
    return f"{value!r}," if known else _own(value)


def _data(data: Mapping[str, Any]) -> str:
    names = {field.name for field in fields(DataSettings)}
    complete = set(data) <= names and (len(data) > 1 or data.get("name") in BUILT_IN)
    if not complete:
        return _own(data.get("name", "unnamed"))
    # The name also where it is the default: it is what a reader looks for.
    call = _call(DataSettings, {k: v for k, v in data.items() if k != "name"})
    rest = call.removeprefix("fm.DataSettings(")
    return f"fm.DataSettings({data['name']!r}{'' if rest == ')' else ', '}{rest},"


def _algorithm(settings: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    stored = as_stored_now(settings)["algorithm"]
    known = ALGORITHMS.get(stored["name"])
    # An algorithm of one's own may be called like one of ours; a spec names it by its file.
    if known is None or asked.get("algorithm", stored["name"]) != stored["name"]:
        return _own(stored["name"])
    given = subtable(subtable(asked, "algorithms"), stored["name"])
    own = {name: value for name, value in stored.items() if name not in ("name", "prior")}
    # An adaptation that was asked for is written even where it has the numbers of the default.
    return f"{_call(known, own, always=('inner',) if 'inner' in given else ())},"


def _prior(settings: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    if "prior" not in settings:
        return None
    strength = settings["prior"].get("strength")
    if "own" in asked.get("prior", {"own": ""}):
        return f"...,  # a prior model of your own, λ = {strength}"
    given = subtable(asked, "prior")
    return f"{_call(TABLES['prior'], {**given, 'strength': strength})},"


def _own(name: Any) -> str:
    return f"...,  # your own: {' '.join(str(name).split())}"


def _call(cls: type, stored: Mapping[str, Any], always: tuple[str, ...] = ()) -> str:
    """A dataclass as a call with what differs from its defaults."""
    arguments = []
    for field in fields(cls):
        default = _default(field)
        if field.name not in stored:
            continue
        if field.name in always or stored[field.name] != serialize(default):
            arguments.append(f"{field.name}={_literal(stored[field.name], default)}")
    return f"fm.{cls.__name__}({', '.join(arguments)})"


def _literal(value: Any, default: Any) -> str:
    if isinstance(value, Mapping) and is_dataclass(default):
        return _call(type(default), value)
    return repr(tuple(value) if isinstance(value, list) else value)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else None
