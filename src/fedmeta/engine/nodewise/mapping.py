"""What the `vmap` rules of autograd functions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def front(info: Any, in_dims: Sequence[int | None], *tensors: Tensor) -> list[Tensor]:
    """Tensors with the mapped axis first; those without one are repeated along it, uncopied."""
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]
