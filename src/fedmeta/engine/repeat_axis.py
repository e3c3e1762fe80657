"""The repeats' axis: what an engine does to one cohort of nodes, done to several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmeta.core.tree import map_leaves
from fedmeta.engine.samples import rows_of
from fedmeta.engine.states import Index


@dataclass(frozen=True)
class RepeatAxis:
    """Whether tensors have an axis of repeats in front of the nodes'.

    Args:
        several: there are several cohorts.
    """

    several: bool

    @property
    def nodes(self) -> int:
        """Which axis is the nodes'."""
        return 1 if self.several else 0

    def lift(self, function: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
        """A function of one cohort as one of several, if there are."""
        return torch.func.vmap(function, axes) if self.several else function

    def join(self, parts: Sequence[Any]) -> Any:
        """Trees of tensors of each cohort as one tree."""
        if not self.several:
            return parts[0]
        return map_leaves(lambda *leaves: torch.stack(leaves), *parts)

    def one(self, tensors: Any) -> Any:
        """The tensors of the first cohort."""
        return map_leaves(lambda leaf: leaf[0], tensors) if self.several else tensors

    def index(self, rows: Tensor, device: torch.device) -> Index:
        """The index of some rows along the nodes' axis, for tensors on a device."""
        place = rows_of(rows, device)
        return (slice(None), place) if self.several else (place,)
