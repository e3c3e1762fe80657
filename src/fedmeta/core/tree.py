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

_MOST = 1e38  # what GPU kernels take as a factor of float32 numbers


def add(a: Tree, b: Tree) -> Tree:
    """a + b."""
    if _on_gpu(a, b):
        return _in_one_launch(a, 1.0, b)
    return {name: leaf + b[name] for name, leaf in a.items()}


def subtract(a: Tree, b: Tree) -> Tree:
    """a − b."""
    if _on_gpu(a, b):
        return _in_one_launch(a, -1.0, b)
    return {name: leaf - b[name] for name, leaf in a.items()}


def descend(a: Tree, length: float, b: Tree) -> Tree:
    """a − length · b, a gradient step."""
    if _on_gpu(a, b) and abs(length) < _MOST:
        return _in_one_launch(a, -length, b)
    return {name: leaf - length * b[name] for name, leaf in a.items()}


def descend_some(a: Tree, length: float, b: Tree) -> Tree:
    """The same where b has only some of a's names; the others stay as they are."""
    return {**a, **descend({name: a[name] for name in b}, length, b)}


def scale(factor: Tensor | float, a: Tree) -> Tree:
    """factor · a."""
    if _unmapped_on_gpu(a, {"factor": factor} if isinstance(factor, Tensor) else {}):
        return dict(zip(a, torch._foreach_mul(list(a.values()), factor), strict=True))
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
    if _unmapped_on_gpu(a):
        return torch.stack(torch._foreach_norm(list(a.values()))).square().sum()
    return _total([leaf.square().sum() for leaf in a.values()])


def _on_gpu(*trees: Tree) -> bool:
    return all(leaf.is_cuda for tree in trees for leaf in tree.values())


def _unmapped_on_gpu(*trees: Tree) -> bool:
    """Whether torch can do all leaves in one GPU kernel: plain tensors, not mapped over nodes."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return _on_gpu(*trees) and not any(wrapped(leaf) for tree in trees for leaf in tree.values())


def _in_one_launch(a: Tree, factor: float, b: Tree) -> Tree:
    """a + factor · b."""
    leaves = _Shift.apply(factor, *a.values(), *(b[name] for name in a))  # type: ignore[no-untyped-call]
    return dict(zip(a, leaves, strict=True))


class _Shift(torch.autograd.Function):
    """a + factor · b for the leaves of a, then those of b: one GPU kernel where shapes agree."""

    @staticmethod
    def forward(factor: float, *leaves: Tensor) -> tuple[Tensor, ...]:
        half = len(leaves) // 2
        return tuple(torch._foreach_add(leaves[:half], leaves[half:], alpha=factor))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.factor = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (None, *gradients, *(ctx.factor * g for g in gradients))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], factor: float, *leaves: Tensor
    ) -> tuple[Any, Any]:
        shifted = _Shift.apply(factor, *mapped_first(info, in_dims[1:], *leaves))  # type: ignore[no-untyped-call]
        return shifted, (0,) * (len(leaves) // 2)


def mapped_first(info: Any, in_dims: Sequence[int | None], *tensors: Tensor) -> list[Tensor]:
    """Tensors in a `vmap` rule, mapped axis first; those without one are repeated, uncopied."""
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]


def as_vector(a: Tree) -> Tree:
    """All numbers of a tree as one leaf without a name; a vector as it is.

    Example:
        >>> a = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}
        >>> from_vector(as_vector(a), a)
        {'w': tensor([[1., 2.]]), 'b': tensor([3.])}
    """
    if "" in a:
        return a
    return {"": torch.cat([leaf if leaf.ndim == 1 else leaf.reshape(-1) for leaf in a.values()])}


def from_vector(vector: Tree, like: Tree) -> Tree:
    """A tree of that vector's numbers, with the names and shapes of another."""
    parts = torch.split(vector[""], [leaf.numel() for leaf in like.values()])
    return {
        name: part if leaf.ndim == 1 else part.view(leaf.shape)
        for part, (name, leaf) in zip(parts, like.items(), strict=True)
    }


def zero_or_nan(a: Tree) -> Tensor:
    """0 if every entry is finite, else NaN; unlike `is_finite` it waits for no device.

    Example:
        >>> zero_or_nan({"a": torch.tensor([1.0, torch.inf])})
        tensor(nan)
    """
    if _unmapped_on_gpu(a):
        largest = torch.stack(torch._foreach_norm(list(a.values()), torch.inf))
        return (largest - largest).sum()
    return _total([(leaf - leaf).sum() for leaf in a.values()])


def _total(numbers: Sequence[Tensor]) -> Tensor:
    return numbers[0] if len(numbers) == 1 else torch.stack(list(numbers)).sum()


def is_finite(a: Tree) -> bool:
    """Whether no entry is NaN or infinite."""
    return bool(torch.stack([leaf.isfinite().all() for leaf in a.values()]).all())


def size(a: Mapping[str, Tensor]) -> int:
    """How many numbers the tree holds."""
    return sum(leaf.numel() for leaf in a.values())


def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Overwrite tensors with others of the same shapes, in one GPU kernel per type."""
    for kind in dict.fromkeys(target.dtype for target in targets):
        pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype == kind]
        torch._foreach_copy_([t for t, _ in pairs], [s for _, s in pairs], non_blocking=True)


def cloned(structure: Any) -> Any:
    """A copy of the tensors of any nesting, see `copy_into`."""
    copy = map_leaves(torch.empty_like, structure)
    copy_into(pytree.tree_leaves(copy), pytree.tree_leaves(structure))
    return copy


def map_leaves(function: Callable[..., Any], *structures: Any) -> Any:
    """Apply a function to the tensors of any nesting of tuples, lists and dictionaries.

    Example:
        >>> map_leaves(lambda x: x + 1, {"a": (torch.tensor(1), [torch.tensor(2)])})
        {'a': (tensor(2), [tensor(3)])}
    """
    return pytree.tree_map(function, *structures)
