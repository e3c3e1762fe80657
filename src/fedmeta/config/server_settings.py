"""The platform's step in settings tables: names, tables that leave things open, older keys.

`server = "adam"` is short for that direction with a length that is found; a table says more:
`server = {direction = "adam", step_size = 0.01}`. What it leaves open is as the algorithm has it by
default or, where it names another direction and no length, as the short name has it.

Before there was a table, `step_size` and `optimizer` of fedmeta and centralised and
`first_penalty`, `longest_step` and `averaging` of admm-fedmeta were settings of the algorithm. They
are still read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from fedmeta.algorithms import ALGORITHMS
from fedmeta.algorithms.directions import Direction
from fedmeta.algorithms.platform_optimizer import PlatformOptimizer
from fedmeta.config.toml_files import Table
from fedmeta.core.serialization import serialize

_MOVED = {
    "admm-fedmeta": ("first_penalty", "longest_step", "averaging"),
    "fedmeta": ("step_size", "optimizer"),
    "centralised": ("step_size", "optimizer"),
}
_RENAMED = {"optimizer": "direction", "sgd": "plain"}
# What every run did before there was a word for it.
_ALWAYS = {"admm-fedmeta": {"extrapolate": True, "duals": True}}


def with_server_table(cls: type[Any], own: Mapping[str, Any]) -> Table:
    """The settings of an algorithm with a server table that is complete, if they speak of one.

    Args:
        cls: the algorithm's class.
        own: its settings, as a file or the command line has them.

    Example:
        >>> from fedmeta.algorithms import FedMeta
        >>> with_server_table(FedMeta, {"step_size": 0.01})["server"]["step_size"]
        0.01
    """
    default = _default(cls)
    moved = {key: own[key] for key in _MOVED.get(cls.name, ()) if key in own}
    if default is None or not ("server" in own or moved):
        return dict(own)
    rest = {key: value for key, value in own.items() if key not in moved}
    given = own.get("server", {})
    if moved:
        named = {_RENAMED.get(key, key): _renamed(value) for key, value in moved.items()}
        if "direction" in named:
            named.setdefault("step_size", default.step_size)
        base = {"direction": given} if isinstance(given, str) else given
        given = {**base, **named}
    if not isinstance(given, Mapping):
        return {**rest, "server": given}
    direction = given.get("direction", default.direction)
    another = direction != default.direction and "step_size" not in given
    if another and direction in get_args(Direction):
        default = PlatformOptimizer.of(direction)
    return {**rest, "server": {**serialize(default), **given}}


def as_stored_now(settings: Mapping[str, Any]) -> Table:
    """Stored settings of an older run as this version would have stored them.

    Args:
        settings: all of them, as `settings.json` and results have them.
    """
    algorithm = settings["algorithm"]
    cls = ALGORITHMS.get(algorithm["name"])
    if cls is None or _default(cls) is None:
        return dict(settings)
    new = {"server": {}, **_ALWAYS.get(cls.name, {})}
    own = {**algorithm, **{key: value for key, value in new.items() if key not in algorithm}}
    return {**settings, "algorithm": with_server_table(cls, own)}


def _default(cls: type[Any]) -> PlatformOptimizer | None:
    """The platform's step that an algorithm takes by default; None: it takes none."""
    found = (each.default for each in fields(cls) if each.name == "server")
    default = next(found, None)
    return default if isinstance(default, PlatformOptimizer) else None


def _renamed(value: Any) -> Any:
    return _RENAMED.get(value, value) if isinstance(value, str) else value
