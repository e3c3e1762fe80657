"""Convolutions as batched matrix products: windows of the input as columns, one product per node.

For convolutions that are neither transposed nor grouped, on any device and in any dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from fedmeta.engine.nodewise.geometry import Geometry, Slot


def evaluate(free: Slot, first: Tensor, second: Tensor, geometry: Geometry) -> Tensor:
    """The derivative of ⟨g, x ∗ w⟩ by the slot `free`; operands in the order x, w, g."""
    if free == "g":
        return _convolve(first, second, geometry)
    if free == "w":
        rows = second.transpose(1, 2).flatten(2)  # (nodes, K, batch · pixels)
        product: Tensor = rows @ _columns(first, geometry).transpose(1, 2)
        adjoint: Tensor = product.unflatten(2, geometry.kernel[1:])
        return adjoint
    # The adjoint of a convolution is one too: of the gradient, spread out by the stride, with the
    # kernel turned about its centre and its channels exchanged.
    space = range(3, first.ndim)
    turned = first.flip(*space).transpose(1, 2).contiguous()
    spread = _spread(second, geometry)
    back = replace(
        geometry,
        inputs=tuple(spread.shape[2:]),
        kernel=tuple(turned.shape[1:]),
        stride=(1,) * len(geometry.stride),
        padding=(0,) * len(geometry.stride),
    )
    return _convolve(spread, turned, back)


def _convolve(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    nodes, batch = x.shape[:2]
    if len(w) == 1:
        x = x.flatten(0, 1).unsqueeze(0)
    product = w.flatten(2) @ _columns(x, geometry)  # (nodes, K, batch · pixels)
    images: Tensor = product.unflatten(2, (-1, *geometry.outputs[1:])).transpose(1, 2)
    shape = (max(nodes, len(w)), batch, *geometry.outputs)
    return images.reshape(shape)


def _columns(x: Tensor, geometry: Geometry) -> Tensor:
    """Every window of the input as a column: (nodes, C · taps, batch · pixels)."""
    axes = len(geometry.stride)
    x = functional.pad(x, [p for size in reversed(geometry.padding) for p in (size, size)])
    steps = x.stride()[3:]
    windows = x.as_strided(
        (*x.shape[:3], *geometry.kernel[2:], *geometry.outputs[1:]),
        (*x.stride()[:3], *_times(steps, geometry.dilation), *_times(steps, geometry.stride)),
    )
    taps = range(3, 3 + axes)
    pixels = range(3 + axes, 3 + 2 * axes)
    return windows.permute(0, 2, *taps, 1, *pixels).flatten(2 + axes).flatten(1, 1 + axes)


def _spread(g: Tensor, geometry: Geometry) -> Tensor:
    """The gradient with its pixels `stride` apart and the border that its adjoint needs."""
    border = []
    for axis, stride in enumerate(geometry.stride):
        reach = geometry.dilation[axis] * (geometry.kernel[2 + axis] - 1)
        before = reach - geometry.padding[axis]
        size = stride * (g.shape[3 + axis] - 1) + 1
        after = geometry.inputs[1 + axis] + reach - before - size
        border.append((before, after))
    if any(stride > 1 for stride in geometry.stride):
        sizes = [s * (n - 1) + 1 for s, n in zip(geometry.stride, g.shape[3:], strict=True)]
        wide = g.new_zeros((*g.shape[:3], *sizes))
        places = [slice(None, None, stride) for stride in geometry.stride]
        wide[(slice(None),) * 3 + tuple(places)] = g
        g = wide
    return functional.pad(g, [width for pair in reversed(border) for width in pair])


def _times(numbers: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    return tuple(number * factor for number, factor in zip(numbers, factors, strict=True))
