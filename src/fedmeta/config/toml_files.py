"""Settings tables: TOML files, presets and flags on top of each other, and tables as TOML again."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmeta.config.presets import preset
from fedmeta.core.errors import SettingError
from fedmeta.core.plain_values import DEEPEST, check_plain
from fedmeta.data.settings import BY_CLASS, DataSettings

Table = dict[str, Any]

_LONGEST = 2**24  # bytes of a settings file


def read_toml(path: Path) -> Table:
    """Read a settings file, or say what is wrong with it."""
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)  # it may be a pipe or a device
        if len(content) > _LONGEST:
            raise SettingError(f"settings file {path} has more than 16 MB", "name another one")
        return parse_toml(content.decode("utf-8"))
    except FileNotFoundError as error:
        raise SettingError(f"there is no settings file {path}", "check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"settings file {path} cannot be read ({error})", "check it") from error
    except ValueError as error:
        raise SettingError(
            f"settings file {path} is not valid TOML ({error})", "mend it"
        ) from error


def parse_toml(text: str) -> Table:
    """The table of a TOML text.

    Raises:
        ValueError: it is not TOML, nests too deeply, or has a whole number beyond 64 bits.
    """
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it nests deeper than {DEEPEST} levels") from None
    check_plain(table)
    return table


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
                if key == "server" and isinstance(before, str):
                    before = {
                        "direction": before
                    }  # what its name is short for, see server_settings
                table[key] = merged([before if isinstance(before, Mapping) else {}, value])
            else:
                table[key] = value
    return table


def nested(point: Mapping[str, Any]) -> Table:
    """Dotted keys as nested tables.

    Example:
        >>> nested({"inner.step_size": 0.1, "penalty": 1.0})
        {'inner': {'step_size': 0.1}, 'penalty': 1.0}
    """
    table: Table = {}
    for key, value in point.items():
        *parents, last = key.split(".")
        place = table
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SettingError(f"{parent} in {key!r} has a value already", "set one of the two")
        place[last] = value
    return table


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


def with_preset(given: Mapping[str, Any]) -> Table:
    """A settings table on top of the preset that it names, if it names one."""
    if "preset" not in given:
        return dict(given)
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


def to_toml(table: Mapping[str, Any]) -> str:
    """A table as TOML; what is None is left out, since TOML has no word for it.

    Example:
        >>> print(to_toml({"loss": "auto", "data": {"nodes": 10, "samples": [20, 40]}}))
        loss = "auto"
        <BLANKLINE>
        [data]
        nodes = 10
        samples = [20, 40]
    """
    return "\n".join(_lines(table, ())).strip()


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in table.items()
        if key not in inner and value is not None
    ]
    if lines and path:
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for key, value in inner.items():
        lines += _lines(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):  # JSON has no inf and nan
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
