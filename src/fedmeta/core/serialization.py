"""Frozen dataclasses to and from plain dictionaries, as TOML and JSON have them.

Reading is strict: an unknown key is an error that names the nearest known one, and a value of the
wrong type is an error that says which type was wanted.
"""

from __future__ import annotations

import hashlib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import torch

from fedmeta.core.errors import SettingError, nearest, require_choice, shown
from fedmeta.core.plain_values import is_finite_number

T = TypeVar("T")

LATER: Mapping[str, bool] = types.MappingProxyType({"later": True})
"""Metadata of a field that older versions did not have and whose default is what they did.

At its default it is left out, so that what they stored is what would be stored now.
"""


def serialize(value: Any) -> Any:
    """A dataclass, or what one holds, as dictionaries, lists, numbers and strings.

    Functions become "module:name", tensors shape and digest: enough to tell two settings apart.
    Fields that equality does not look at (`field(compare=False)`) are no settings and left out, and
    so are those of `LATER` at their defaults.
    """
    if is_dataclass(value) and not isinstance(value, type):
        kept = {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
        for each in fields(value):
            if each.metadata.get("later") and kept[each.name] == each.default:
                del kept[each.name]
        return {name: serialize(held) for name, held in kept.items()}
    if isinstance(value, Mapping):
        return {str(key): serialize(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [serialize(each) for each in value]
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        return f"tensor of shape {tuple(value.shape)}, sha256 {digest}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"


def deserialize(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from a dictionary, checking names and types.

    Args:
        cls: the dataclass.
        values: its fields; those left out keep their defaults.
        where: the place in the file or on the command line, for messages ("algorithm").

    Example:
        >>> from fedmeta.core.objective import Adaptation
        >>> inner = deserialize(Adaptation, {"step_size": 1, "scope": ["head.*"]}, "inner")
        >>> inner.step_size, inner.scope
        (1.0, ('head.*',))
    """
    hints = typing.get_type_hints(cls)
    known = [each.name for each in fields(cls) if each.init and each.compare]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise SettingError(f"{where} has no setting {name!r}", nearest(name, known))
    for each in fields(cls):  # type: ignore[arg-type]
        required = each.init and each.default is MISSING and each.default_factory is MISSING
        if required and each.name not in values:
            raise SettingError(f"{where} lacks {each.name!r}", f"give {_kind(hints[each.name])}")
    return cls(
        **{name: _convert(value, hints[name], f"{where}.{name}") for name, value in values.items()}
    )


def _convert(value: Any, wanted: Any, where: str) -> Any:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(wanted), where)
    if origin is Literal:
        require_choice(where, value, get_args(wanted))
        return value
    if origin is tuple and isinstance(value, list | tuple):
        item = get_args(wanted)[0]
        return tuple(_convert(each, item, f"{where}[{i}]") for i, each in enumerate(value))
    if is_dataclass(wanted) and isinstance(value, Mapping):
        return deserialize(wanted, value, where)  # type: ignore[arg-type]
    if origin is not None and isinstance(value, Mapping) and issubclass(origin, Mapping):
        item = get_args(wanted)[1]
        return {key: _convert(each, item, f"{where}.{key}") for key, each in value.items()}
    if wanted is float and is_finite_number(value):
        return float(value)
    right = isinstance(wanted, type) and isinstance(value, wanted)
    if right and (wanted is bool or not isinstance(value, bool)):  # True is an int to Python
        return value
    raise SettingError(f"{where} is {shown(value)}", f"give {_kind(wanted)}")


def _convert_union(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    candidates = [choice for choice in choices if choice is not type(None)]
    problem: SettingError | None = None
    for choice in candidates:
        try:
            return _convert(value, choice, where)
        except SettingError as error:
            # Of several complaints the one that looked inside a table says the most.
            nested = isinstance(value, Mapping) and is_dataclass(choice)
            problem = error if nested or problem is None else problem
    if len(candidates) > 1 and not isinstance(value, Mapping):
        wanted = " or ".join(dict.fromkeys(_kind(choice) for choice in candidates))
        raise SettingError(f"{where} is {shown(value)}", f"give {wanted}")
    assert problem is not None
    raise problem


def _kind(wanted: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if wanted in names:
        return names[wanted]
    origin = get_origin(wanted)
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(wanted))
    if origin is tuple:
        return f"a list of {_kind(get_args(wanted)[0]).removeprefix('a ')}s"
    return "a table"
