"""Trees with a node axis: leaves of shape (I, …)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmeta.core.tree import Tree


def squared_norms(a: Tree) -> Tensor:
    """‖a_i‖² of every node, (I,).

    Example:
        >>> squared_norms({"a": torch.tensor([[3.0, 4.0], [0.0, 1.0]])})
        tensor([25.,  1.])
    """
    return torch.stack([leaf.flatten(1).square().sum(1) for leaf in a.values()]).sum(0)


def broadcast(numbers: Tensor, leaf: Tensor) -> Tensor:
    """One number per node, in the shape that multiplies a leaf with a node axis."""
    return numbers.reshape(-1, *[1] * (leaf.ndim - 1))
