"""Nestings of tensors taken apart and put together again, many times a round.

torch's pytree does the same for more kinds, and takes as long for the arguments of a round as a
round of a few small nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from torch import Tensor


def taken_apart(nesting: Any) -> tuple[list[Any], Hashable]:
    """The leaves of tuples, lists and dictionaries in order, and what `put_together` needs.

    Two nestings have the same form if they differ in their leaves alone.

    Example:
        >>> leaves, form = taken_apart({"a": (1, [2]), "b": 3})
        >>> leaves, put_together(form, [4, 5, 6])
        ([1, 2, 3], {'a': (4, [5]), 'b': 6})
    """
    leaves: list[Any] = []
    return leaves, _form(nesting, leaves)


def put_together(form: Hashable, leaves: Sequence[Any]) -> Any:
    """A nesting of that form with other leaves."""
    return _built(form, iter(leaves))


def _form(nesting: Any, leaves: list[Any]) -> Hashable:
    """The form of a nesting, whose leaves are added; that of a leaf is None."""
    if isinstance(nesting, Tensor):
        leaves.append(nesting)
        return None
    if isinstance(nesting, dict):
        return dict, tuple(nesting), tuple([_form(each, leaves) for each in nesting.values()])
    if isinstance(nesting, tuple | list):
        return type(nesting), None, tuple([_form(each, leaves) for each in nesting])
    leaves.append(nesting)
    return None


def _built(form: Any, leaves: Iterator[Any]) -> Any:
    if form is None:
        return next(leaves)
    kind, names, parts = form
    built = [_built(part, leaves) for part in parts]
    if kind is dict:
        return dict(zip(names, built, strict=True))
    return kind(*built) if hasattr(kind, "_fields") else kind(built)
