"""Arithmetic on named parameter trees: θ, y_i, gradients and contributions are all trees.

A tree is a flat dictionary from parameter name to tensor, in the model's own order. Every
function here returns a new tree, works under `torch.func.vmap`, and keeps names and order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = dict[str, Tensor]


def transform(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tree:
    """Apply a function leaf by leaf.

    Example:
        >>> transform(torch.add, {"a": torch.tensor(1)}, {"a": torch.tensor(2)})
        {'a': tensor(3)}
    """
    first = trees[0]
    return {name: function(*(tree[name] for tree in trees)) for name in first}


def add(a: Tree, b: Tree) -> Tree:
    """a + b."""
    return {name: leaf + b[name] for name, leaf in a.items()}


def subtract(a: Tree, b: Tree) -> Tree:
    """a − b."""
    return {name: leaf - b[name] for name, leaf in a.items()}


def scale(factor: Tensor | float, a: Tree) -> Tree:
    """factor · a."""
    return {name: factor * leaf for name, leaf in a.items()}


def combine(p: Tensor | float, a: Tree, q: Tensor | float, b: Tree) -> Tree:
    """p·a + q·b."""
    return {name: p * leaf + q * b[name] for name, leaf in a.items()}


def zeros_like(a: Tree) -> Tree:
    """The zero tree of a's names and shapes."""
    return {name: torch.zeros_like(leaf) for name, leaf in a.items()}


def squared_norm(a: Tree) -> Tensor:
    """‖a‖²: the sum of the squares of all entries.

    Example:
        >>> squared_norm({"a": torch.tensor([3.0, 4.0])})
        tensor(25.)
    """
    return torch.stack([leaf.square().sum() for leaf in a.values()]).sum()


def is_finite(a: Tree) -> bool:
    """Whether no entry is NaN or infinite."""
    return bool(torch.stack([leaf.isfinite().all() for leaf in a.values()]).all())


def size(a: Mapping[str, Tensor]) -> int:
    """How many numbers the tree holds."""
    return sum(leaf.numel() for leaf in a.values())


def map_leaves(function: Callable[..., Any], *structures: Any) -> Any:
    """Apply a function to the tensors of any nesting of tuples, lists and dictionaries.

    Example:
        >>> map_leaves(lambda x: x + 1, {"a": (torch.tensor(1), [torch.tensor(2)])})
        {'a': (tensor(2), [tensor(3)])}
    """
    return pytree.tree_map(function, *structures)
