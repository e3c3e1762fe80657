"""Convolutions by torch's own kernels: shared weights as one large batch, own weights one by one.

Serves every geometry. Grouped convolutions take the nodes as further groups, which for depthwise
ones is what those kernels are made for; others go node by node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedmeta.engine.nodewise.geometry import Geometry, Slot


def evaluate(
    free: Slot, first: Tensor, second: Tensor, geometry: Geometry, bias: Tensor | None = None
) -> Tensor:
    """The derivative of ⟨g, x ∗ w + b⟩ by the slot `free`; operands in the order x, w, g."""
    biases = 1 if bias is None else len(bias)
    nodes = max(len(first), len(second), biases)
    weight = {"g": second, "x": first}.get(free)
    if weight is not None and len(weight) == biases == 1:
        images = first if free == "g" else second
        batch = images.flatten(0, 1)
        operands = (batch, weight[0]) if free == "g" else (weight[0], batch)
        shared = None if bias is None else bias[0]
        large: Tensor = _call(free, *operands, geometry, shared).unflatten(0, images.shape[:2])
        return large
    first, second = (t.expand(nodes, *t.shape[1:]) for t in (first, second))
    each = None if bias is None else bias.expand(nodes, -1)
    if geometry.groups > 1:
        return _as_groups(free, first, second, geometry, each)
    rows = [None] * nodes if each is None else list(each.unbind())
    results = [
        _call(free, one, other, geometry, row)
        for one, other, row in zip(first.unbind(), second.unbind(), rows, strict=True)
    ]
    if free == "w":
        return torch.stack(results)
    # Side by side along the batch, which keeps the images' layout in memory.
    joined: Tensor = torch.cat(results).unflatten(0, (nodes, -1))
    return joined


def weight_and_bias(x: Tensor, g: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The derivatives of ⟨g, x ∗ w + b⟩ by w and by b, one call of torch per node."""
    nodes = max(len(x), len(g))
    x, g = (t.expand(nodes, *t.shape[1:]) for t in (x, g))
    if geometry.groups > 1:
        return _as_groups("w", x, g, geometry, None), g.sum((1, *range(3, g.ndim)))
    weight, arguments = empty_like(geometry.kernel, g), _arguments(geometry)
    pairs = [
        torch.ops.aten.convolution_backward(
            channels_last(other),
            channels_last(one),
            weight,
            [g.shape[2]],
            *arguments,
            [False, True, True],
        )[1:]
        for one, other in zip(x.unbind(), g.unbind(), strict=True)
    ]
    return torch.stack([w for w, _ in pairs]), torch.stack([b for _, b in pairs])


def _as_groups(
    free: Slot, first: Tensor, second: Tensor, geometry: Geometry, bias: Tensor | None
) -> Tensor:
    nodes = len(first)
    wide = replace(
        geometry,
        inputs=(nodes * geometry.inputs[0], *geometry.inputs[1:]),
        kernel=(nodes * geometry.kernel[0], *geometry.kernel[1:]),
        groups=nodes * geometry.groups,
    )

    def side_by_side(operand: Tensor) -> Tensor:
        return operand.transpose(0, 1).flatten(1, 2)  # (batch, nodes · channels, *space)

    if free == "w":
        result = _call(free, side_by_side(first), side_by_side(second), wide)
        kernels: Tensor = result.unflatten(0, (nodes, geometry.kernel[0]))
        return kernels
    if free == "g":
        each = None if bias is None else bias.flatten()
        result = _call(free, side_by_side(first), second.flatten(0, 1), wide, each)
    else:
        result = _call(free, first.flatten(0, 1), side_by_side(second), wide)
    images: Tensor = result.unflatten(1, (nodes, -1)).transpose(0, 1)
    return images


def _call(
    free: Slot, first: Tensor, second: Tensor, geometry: Geometry, bias: Tensor | None = None
) -> Tensor:
    """One call of torch for one set of weights, without a node axis."""
    arguments = _arguments(geometry)
    first, second = channels_last(first), channels_last(second)
    if free == "g":
        return torch.convolution(first, second, bias, *arguments)
    # torch wants to see the operand it differentiates by, but not its values.
    if free == "x":
        placeholder = empty_like((len(second), *geometry.inputs), second)
        wanted, operands = [True, False, False], (second, placeholder, first)
    else:
        placeholder = empty_like(geometry.kernel, second)
        wanted, operands = [False, True, False], (second, first, placeholder)
    by_input, by_weight, _ = torch.ops.aten.convolution_backward(
        *operands, None, *arguments, wanted
    )
    result: Tensor = by_input if free == "x" else by_weight
    return result


def _arguments(geometry: Geometry) -> tuple[Any, ...]:
    return (
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding,
        geometry.groups,
    )


def empty_like(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A tensor without values: torch looks at its shape, type and layout alone."""
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


def channels_last(tensor: Tensor) -> Tensor:
    """Images and kernels channels-last: torch pools them several times faster so, on CPUs."""
    if tensor.ndim != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
