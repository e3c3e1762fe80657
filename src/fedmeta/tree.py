"""Arithmetic on named parameter trees: θ, y_i, gradients and contributions are all trees.

A tree is a flat dictionary from parameter name to tensor, in the model's own order. Every
function here returns a new tree, works under `torch.func.vmap`, and keeps names and order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    if _in_one_launch(a, b):
        return _named(a, torch._foreach_add(_leaves(a), _leaves(b, a)))
    return {name: leaf + b[name] for name, leaf in a.items()}


def subtract(a: Tree, b: Tree) -> Tree:
    """a − b."""
    if _in_one_launch(a, b):
        return _named(a, torch._foreach_sub(_leaves(a), _leaves(b, a)))
    return {name: leaf - b[name] for name, leaf in a.items()}


def scale(factor: Tensor | float, a: Tree) -> Tree:
    """factor · a."""
    if _in_one_launch(a, {"factor": factor} if isinstance(factor, Tensor) else {}):
        return _named(a, torch._foreach_mul(_leaves(a), factor))
    return {name: factor * leaf for name, leaf in a.items()}


def combine(p: Tensor | float, a: Tree, q: Tensor | float, b: Tree) -> Tree:
    """p·a + q·b."""
    return add(scale(p, a), scale(q, b))


def zeros_like(a: Tree) -> Tree:
    """The zero tree of a's names and shapes."""
    return {name: torch.zeros_like(leaf) for name, leaf in a.items()}


def squared_norm(a: Tree) -> Tensor:
    """‖a‖²: the sum of the squares of all entries.

    Example:
        >>> squared_norm({"a": torch.tensor([3.0, 4.0])})
        tensor(25.)
    """
    if _in_one_launch(a):
        return torch.stack(torch._foreach_norm(_leaves(a))).square().sum()
    return torch.stack([leaf.square().sum() for leaf in a.values()]).sum()


def _in_one_launch(*trees: Tree) -> bool:
    """Whether torch can do all leaves in one GPU kernel: plain tensors, not mapped over nodes."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(leaf.is_cuda and not wrapped(leaf) for tree in trees for leaf in tree.values())


def _leaves(a: Tree, like: Tree | None = None) -> list[Tensor]:
    return [a[name] for name in (a if like is None else like)]


def _named(like: Tree, leaves: Sequence[Tensor]) -> Tree:
    return dict(zip(like, leaves, strict=True))


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
