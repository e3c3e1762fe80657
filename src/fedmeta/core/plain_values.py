"""JSON and TOML from elsewhere: how deep it may nest, and how many digits a number may have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

DEEPEST = 64
"""Tables and lists within each other."""
_LARGEST = 2**64


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, nests too deeply, or has a number that is too large or none.

    Example:
        >>> parse_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(f"it nests deeper than {DEEPEST} levels") from None
    check_plain(value)
    return value


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise ValueError("it has a number that is not finite")
    return number


def check_plain(value: Any) -> None:
    """Refuse a value that nests too deeply or holds whole numbers beyond 64 bits.

    Raises:
        ValueError: says which of the two.

    Example:
        >>> check_plain({"a": [1e300, -(2**63)]})
        >>> check_plain([10**400])
        Traceback (most recent call last):
        ValueError: it has a whole number of more than 64 bits
    """
    level = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                below += each.values()
            elif isinstance(each, list | tuple):
                below += each
            elif isinstance(each, int) and not -_LARGEST < each < _LARGEST:
                raise ValueError("it has a whole number of more than 64 bits")
        if not below:
            return
        level = below
    raise ValueError(f"it nests deeper than {DEEPEST} levels")


def is_finite_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; True and False are none.

    Example:
        >>> is_finite_number(3), is_finite_number(float("nan")), is_finite_number(10**400)
        (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
