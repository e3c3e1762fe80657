"""Derivatives of convolutions and poolings as operations that ONNX knows.

ONNX has convolutions and poolings but not their derivatives. Those of a convolution are
convolutions again:

    ⟨g, x ∗ w⟩  by x: the transposed convolution of g with w
                by w: the convolution of x with g, samples as channels, stride as dilation

That of a maximum puts every gradient at the place of its maximum (the first among equals, as in
PyTorch), that of an average spreads it evenly: a transposed convolution with ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions

from fedmeta.engine.nodewise.geometry import Window

_aten = torch.ops.aten

Sizes = Sequence[int]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """How the operations of a traced gradient are written with those that ONNX has."""
    return {
        **core_aten_decompositions(),
        _aten.convolution_backward.default: _convolution,
        _aten.max_pool2d_with_indices_backward.default: _maximum,
        _aten.avg_pool2d.default: _average,
        _aten.avg_pool2d_backward.default: _average_backward,
        _aten.pad.default: _pad,
        _aten.empty_permuted.default: _unwritten,
    }


def _convolution(
    gradient: Tensor,
    x: Tensor,
    w: Tensor,
    _bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    _output_padding: Sizes,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients by input, weight and bias."""
    axes = x.ndim - 2
    stride, padding, dilation = (_each(value, axes) for value in (stride, padding, dilation))
    by_x = by_w = by_bias = None
    if wanted[0]:
        rest = [0] * axes
        if not transposed:
            rest = [
                x.shape[2 + a]
                - (gradient.shape[2 + a] - 1) * stride[a]
                + 2 * padding[a]
                - dilation[a] * (w.shape[2 + a] - 1)
                - 1
                for a in range(axes)
            ]
        by_x = _aten.convolution(
            gradient, w, None, stride, padding, dilation, not transposed, rest, groups
        )
    if wanted[1]:
        # A transposed convolution is the adjoint of one: input and output exchange their parts.
        image, factor = (gradient, x) if transposed else (x, gradient)
        by_w = _by_weight(image, factor, w.shape[2:], stride, padding, dilation, groups)
    if wanted[2]:
        by_bias = gradient.sum((0, *range(2, gradient.ndim)))
    return by_x, by_w, by_bias


def _by_weight(
    image: Tensor,
    factor: Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    part = image.shape[1] // groups
    split = image.reshape(image.shape[0], groups, part, *image.shape[2:])
    x = split.transpose(0, 2).flatten(1, 2)  # (channels / groups, groups · samples, …)
    g = factor.transpose(0, 1)  # (outputs, samples, …)
    none = [0] * len(stride)
    result: Tensor = _aten.convolution(x, g, None, dilation, padding, stride, False, none, groups)
    for axis, taps in enumerate(kernel, start=2):  # more than that where the stride left some over
        result = result.narrow(axis, 0, taps)
    return result.transpose(0, 1)


def _maximum(gradient: Tensor, images: Tensor, *window_and_places: Any) -> Tensor:
    """Every gradient at the pixel of its maximum, which the places tell."""
    places: Tensor = window_and_places[-1]
    flat = torch.zeros_like(images).flatten(-2)
    spread = flat.scatter_add(-1, places.flatten(-2), gradient.flatten(-2))
    return spread.reshape(images.shape)


def _average(images: Tensor, *pooling: Any) -> Tensor:
    """Sums as a convolution with ones, divided: runtimes differ on what counts of a border."""
    window = _window(*pooling)
    sums = _with_ones(window, _pad(images, _border(window, images.shape[-2:])), False)
    return sums / _counts(window, images)


def _average_backward(gradient: Tensor, images: Tensor, *pooling: Any) -> Tensor:
    """Every gradient in equal shares over the pixels of its window."""
    window, space = _window(*pooling), images.shape[-2:]
    spread: Tensor = _with_ones(window, gradient / _counts(window, images), True)
    left, _, top, _ = _border(window, space)
    # What no window reached gets nothing, what lies on the border is cut off.
    right, below = left + space[1] - spread.shape[-1], top + space[0] - spread.shape[-2]
    spread = _pad(spread, (0, max(0, right), 0, max(0, below)))
    return spread.narrow(-2, top, space[0]).narrow(-1, left, space[1])


def _window(
    size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    ceil_mode: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Window:
    """The window of an average pooling, from the arguments that PyTorch's operation takes."""
    (a, b), (c, d), (e, f) = _each(size, 2), _each(stride or size, 2), _each(padding, 2)
    return Window((a, b), (c, d), (e, f), (1, 1), ceil_mode, count_padding, divisor)


def _border(window: Window, space: Sizes) -> tuple[int, int, int, int]:
    """Zeros left, right, above and below that all windows together need."""
    below, right = (
        max(0, (count - 1) * window.stride[a] + window.size[a] - space[a] - window.padding[a])
        for a, count in enumerate(window.outputs(space))
    )
    return window.padding[1], right, window.padding[0], below


def _counts(window: Window, images: Tensor) -> Tensor | float:
    """What the sum of every window is divided by: how many of its pixels count."""
    if window.divisor is not None:
        return float(window.divisor)
    left, right, top, below = _border(window, images.shape[-2:])
    (above, side), counted = window.padding, float(window.count_padding)
    pixels = torch.ones(1, 1, *images.shape[-2:], dtype=images.dtype)
    framed = _pad(pixels, (side, side, above, above), value=counted)
    # What windows reach beyond their border never counts.
    whole = _pad(framed, (left - side, right - side, top - above, below - above))
    return _with_ones(window, whole, False)


def _with_ones(window: Window, x: Tensor, transposed: bool) -> Tensor:
    """The sums over windows, every channel by itself; transposed: every number spread over one."""
    ones, stride = torch.ones(x.shape[1], 1, *window.size, dtype=x.dtype), list(window.stride)
    result: Tensor = _aten.convolution(
        x, ones, None, stride, [0, 0], [1, 1], transposed, [0, 0], x.shape[1]
    )
    return result


def _pad(tensor: Tensor, border: Sizes, mode: str = "constant", value: float | None = None) -> Any:
    """Constant borders by the operation that keeps an open number of samples open."""
    if mode != "constant":
        return NotImplemented
    return _aten.constant_pad_nd(tensor, list(border), value or 0.0)


def _unwritten(size: Sizes, _order: Sizes, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Memory that is about to be written: zeros serve as well."""
    return torch.zeros(size, dtype=dtype)


def _each(value: Sizes, axes: int) -> list[int]:
    return list(value) * axes if len(value) == 1 else list(value)
