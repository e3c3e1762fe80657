"""Convolutions with a node axis: many nodes at once, each with weights of its own or all with one.

Everything about a convolution is in one trilinear form of input, weight and a factor on the output,

    T(x, w, g) = ⟨g, x ∗ w⟩

The output x ∗ w is its derivative by g, the two adjoints that gradients need are those by x and by
w. A derivative of one of the three is one of the three again: three kernels serve losses, gradients
and curvature products of any order.

Operands have a leading node axis. Where its length is 1 all nodes share the operand, so that a
convolution with shared weights is one large batch. Under `torch.func.vmap` the mapped axis becomes
the node axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmeta.engine.nodewise.geometry import Geometry, Slot
from fedmeta.engine.nodewise.kernels import evaluate, weight_and_bias

_ORDER: tuple[Slot, ...] = ("x", "w", "g")


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """x ∗ w + bias for one node: x (batch, channels, *space), w (out, channels / groups, *kernel).

    Example:
        >>> x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)
        >>> convolution(x, w, None, Geometry.of(x, w, padding=1))[0, 0, 1]
        tensor([6., 9., 6.])
    """
    if bias is None:
        output = _contract("g", {"x": x.unsqueeze(0), "w": w.unsqueeze(0)}, geometry)
    else:
        output = _Biased.apply(x.unsqueeze(0), w.unsqueeze(0), bias.unsqueeze(0), geometry)
    return output.squeeze(0)


def _contract(free: Slot, operands: dict[Slot, Tensor], geometry: Geometry) -> Tensor:
    """The derivative of T by the slot `free`, at the operands of the two other slots."""
    first, second = (operands[slot] for slot in _ORDER if slot != free)
    result: Tensor = _Contraction.apply(first, second, free, geometry)
    return result


class _Contraction(torch.autograd.Function):
    @staticmethod
    def forward(first: Tensor, second: Tensor, free: Slot, geometry: Geometry) -> Tensor:
        return evaluate(free, first, second, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first, second, ctx.free, ctx.geometry = inputs
        ctx.save_for_backward(first, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, second = (slot for slot in _ORDER if slot != ctx.free)
        one, other = ctx.saved_tensors
        by_one = _needed(ctx, 0, first, {second: other, ctx.free: gradients[0]}, one)
        by_other = _needed(ctx, 1, second, {first: one, ctx.free: gradients[0]}, other)
        return by_one, by_other, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], first: Tensor, second: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        (first, second), shape = _fold(info.batch_size, in_dims, first, second)
        result: Tensor = _Contraction.apply(first, second, *rest)
        return result.unflatten(0, shape), 0


class _Biased(torch.autograd.Function):
    """x ∗ w + b in one go."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
        return evaluate("g", x, w, geometry, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.geometry = inputs
        ctx.shared = len(w) == 1, len(bias) == 1
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w = ctx.saved_tensors
        by_x = _needed(ctx, 0, "x", {"w": w, "g": gradients[0]}, x)
        if not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
            return by_x, None, None, None
        pair = _WeightAndBias.apply(x, gradients[0], ctx.geometry)
        by_w, by_bias = (
            t.sum(0, keepdim=True) if shared and len(t) > 1 else t
            for t, shared in zip(pair, ctx.shared, strict=True)
        )
        return by_x, by_w, by_bias, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, w: Tensor, bias: Tensor, geometry: Geometry
    ) -> tuple[Tensor, int]:
        (x, w, bias), shape = _fold(info.batch_size, in_dims, x, w, bias)
        result: Tensor = _Biased.apply(x, w, bias, geometry)
        return result.unflatten(0, shape), 0


class _WeightAndBias(torch.autograd.Function):
    """The adjoints of x ∗ w + b by w and by b, which one pass over the images gives together."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        return weight_and_bias(x, g, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, g, ctx.geometry = inputs
        ctx.save_for_backward(x, g)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x, g), (w, bias) = ctx.saved_tensors, gradients
        by_g = None
        if ctx.needs_input_grad[1]:
            by_g = _Biased.apply(x, w, bias, ctx.geometry)
            by_g = by_g.sum(0, keepdim=True) if len(g) == 1 < len(by_g) else by_g
        return _needed(ctx, 0, "x", {"w": w, "g": g}, x), by_g, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, g: Tensor, geometry: Geometry
    ) -> tuple[Any, tuple[int, int]]:
        (x, g), shape = _fold(info.batch_size, in_dims, x, g)
        pair = _WeightAndBias.apply(x, g, geometry)
        return tuple(t.unflatten(0, shape) for t in pair), (0, 0)


def _needed(
    ctx: Any, place: int, slot: Slot, others: dict[Slot, Tensor], operand: Tensor
) -> Tensor | None:
    """T is linear in every slot: the gradient by an operand, if autograd asks for it."""
    if not ctx.needs_input_grad[place]:
        return None
    result = _contract(slot, others, ctx.geometry)
    return result.sum(0, keepdim=True) if len(operand) == 1 < len(result) else result


def _fold(
    size: int, in_dims: Sequence[int | None], *operands: Tensor
) -> tuple[list[Tensor], tuple[int, int]]:
    """Mapped axis and node axis as one; an operand that all share stays shared."""
    pairs = list(zip(operands, in_dims, strict=False))
    nodes = max(len(t if dim is None else t.select(dim, 0)) for t, dim in pairs)
    folded = []
    for t, dim in pairs:
        if dim is not None:
            t = t.movedim(dim, 0)
            t = t.expand(size, nodes, *t.shape[2:]).flatten(0, 1)
        elif len(t) > 1:
            t = t.expand(size, *t.shape).flatten(0, 1)
        folded.append(t)
    return folded, (size, nodes)
