"""Contributions as vectors of whole numbers, whose sums are exact modulo 2⁶⁴, for masks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.errors import FedmetaError
from fedmeta.core.tree import Tree

_SCALAR = 2.0**-32  # what weights and metrics are multiples of
ROOM = 2.0**62  # largest multiple of a sum


class MaskingError(FedmetaError):
    """A masked sum that cannot be made, or must not be revealed."""


class Content(NamedTuple):
    """What a vector holds: numbers of the update, then weight and metrics by name.

    Args:
        like: names and shapes of the update.
        metrics: names of the metrics.
        unit: what numbers of the update are multiples of.
    """

    like: Tree
    metrics: tuple[str, ...]
    unit: float = 2.0**-40


def to_whole(total: Contribution, content: Content) -> Tensor:
    """Σ contributions as one vector of whole numbers, ready to be masked.

    A number x becomes round(x / unit), those of weight and metrics round(x · 2³²), so that the
    error of a sum over n edges is at most n/2 units in every number.

    Raises:
        MaskingError: a number is not finite, or too large.

    Example:
        >>> one = Contribution({"a": torch.tensor([0.5])}, torch.tensor(2.0), {})
        >>> whole = to_whole(one, Content(one.update, ()))
        >>> from_whole(whole + whole, Content(one.update, ()))
        Contribution(update={'a': tensor([1.])}, weight=tensor(4.), metrics={})
    """
    update = torch.cat([total.update[name].reshape(-1) for name in content.like])
    scalars = torch.stack([total.weight, *(total.metrics[name] for name in content.metrics)])
    parts = [(update, content.unit), (scalars, _SCALAR)]
    numbers = torch.cat([part.to("cpu", torch.float64) / unit for part, unit in parts])
    if not bool(numbers.isfinite().all()):
        raise MaskingError("its sum is not finite", "raise the penalty, or lower the step size")
    check_room(float(numbers.abs().max()), 1, content.unit)
    return numbers.round().to(torch.int64)


def check_room(largest: float, edges: int, unit: float = 2.0**-40) -> None:
    """Refuse numbers that so many edges cannot add up."""
    if largest > ROOM / edges:
        raise MaskingError(
            f"its sum has a number above {ROOM / edges * unit:.3g}, which masks have no room for",
            "scale the data, or leave secure aggregation out",
        )


def from_whole(total: Tensor, content: Content) -> Contribution:
    """The inverse of `to_whole`, for a sum of such vectors."""
    first = next(iter(content.like.values()))
    sizes = [leaf.numel() for leaf in content.like.values()]
    *parts, scalars = torch.split(total, [*sizes, 1 + len(content.metrics)])
    update = {
        name: (part.to(torch.float64) * content.unit).reshape(leaf.shape).to(leaf)
        for (name, leaf), part in zip(content.like.items(), parts, strict=True)
    }
    weight, *metrics = (scalars.to(torch.float64) * _SCALAR).to(first)
    return Contribution(update, weight, dict(zip(content.metrics, metrics, strict=True)))
