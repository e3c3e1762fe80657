"""What people give as several inputs or sequences, told apart from arrays, brought to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedmeta.core.errors import DataError

ONLY = "x"
"""What an input is called that has no name."""


def is_named(given: Any) -> bool:
    """Whether inputs are several, or sequences of different lengths, and no array.

    Example:
        >>> is_named({"a": np.zeros((2, 1))}), is_named([[1, 2], [3]]), is_named([[1, 2], [3, 4]])
        (True, True, False)
    """
    if isinstance(given, Mapping):
        return True
    if isinstance(given, np.ndarray):
        return given.dtype == object and given.ndim == 1 and differ(list(given))
    if isinstance(given, Tensor) or not isinstance(given, Sequence) or isinstance(given, str):
        return False
    each = list(given)
    return bool(each) and (all(isinstance(sample, Mapping) for sample in each) or differ(each))


def named(given: Any) -> dict[str, Any]:
    """Inputs by name.

    Args:
        given: a mapping of names to arrays, or to lists of arrays of different lengths; a list with
            a mapping per sample; or a list of arrays of different lengths, which is called "x".
    """
    if isinstance(given, Mapping):
        inputs = {str(name): values for name, values in given.items()}
    elif all(isinstance(sample, Mapping) for sample in given) and len(given):
        first = list(given[0])
        for row, sample in enumerate(given):
            if {*sample} != {*first}:
                raise DataError(
                    f"sample {row + 1} has inputs {sorted(map(str, sample))}, the first one "
                    f"{sorted(map(str, first))}",
                    "give every sample the same inputs",
                )
        inputs = {str(name): [sample[name] for sample in given] for name in first}
    else:
        inputs = {ONLY: list(given)}
    if not inputs:
        raise DataError("there are no inputs", "give at least one")
    for name in inputs:
        if not name.isidentifier():
            raise DataError(
                f"an input is called {name!r}", "use names that are Python arguments, like 'left'"
            )
    return inputs


def one_by_one(given: Any) -> list[Any]:
    """Inputs that `is_named` as a list of samples.

    Example:
        >>> one_by_one({"a": [1, 2], "b": [[3], [4, 5]]})
        [{'a': 1, 'b': [3]}, {'a': 2, 'b': [4, 5]}]
    """
    if not isinstance(given, Mapping):
        return list(given)
    counts = {len(values) for values in given.values()}
    if len(counts) > 1:
        raise DataError("inputs have different numbers of samples", "give as many of each")
    return [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]


def differ(samples: Sequence[Any]) -> bool:
    """Whether samples are sequences of different lengths."""
    if not samples or any(isinstance(each, str | Mapping) for each in samples):
        return False
    lengths = {
        len(each) if hasattr(each, "__len__") and np.ndim(each) else None for each in samples
    }
    return None not in lengths and len(lengths) > 1
