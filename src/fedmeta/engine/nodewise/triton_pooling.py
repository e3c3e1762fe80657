"""Poolings on a GPU, one kernel each (Triton); images are channels-last in memory.

The place of a maximum is the number of its tap in the window, one byte. Gradients are gathered by
the pixel that receives them, so sums have a fixed order and nothing is added atomically.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-unimported"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmeta.engine.nodewise.geometry import Window
from fedmeta.engine.nodewise.triton_operands import channels_last

_BLOCK = 1024


def maxima(images: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """The largest of every window, and which tap it is."""
    source = channels_last(images)
    out = _empty(images, window.outputs(images.shape[-2:]), images.dtype)
    places = torch.empty_like(out, dtype=torch.int8)
    _launch(_maxima_kernel, out.numel(), (source, out, places), images.shape, window)
    return _as_images(out), _as_images(places)


def unpool(gradient: Tensor, places: Tensor, size: torch.Size, window: Window) -> Tensor:
    """Every gradient at the pixel of its maximum."""
    out = _empty(gradient, size, gradient.dtype)
    tensors = (channels_last(gradient), channels_last(places), out)
    _launch(_unpool_kernel, out.numel(), tensors, (gradient.shape[-3], *size), window)
    return _as_images(out)


def pick(images: Tensor, places: Tensor, window: Window) -> Tensor:
    """The pixels where the maxima were."""
    places = channels_last(places)
    out = torch.empty_like(places, dtype=images.dtype)
    tensors = (channels_last(images), places, out)
    _launch(_pick_kernel, out.numel(), tensors, images.shape, window)
    return _as_images(out)


def averages(images: Tensor, window: Window) -> Tensor:
    """The mean of every window."""
    out = _empty(images, window.outputs(images.shape[-2:]), images.dtype)
    tensors = (channels_last(images), out)
    _launch(_averages_kernel, out.numel(), tensors, images.shape, window, window.average_arguments)
    return _as_images(out)


def spread(gradient: Tensor, size: torch.Size, window: Window) -> Tensor:
    """Every gradient in equal shares over the pixels of its window."""
    out = _empty(gradient, size, gradient.dtype)
    tensors = (channels_last(gradient), out)
    shape = (gradient.shape[-3], *size)
    _launch(_spread_kernel, out.numel(), tensors, shape, window, window.average_arguments)
    return _as_images(out)


def _as_images(tensor: Tensor) -> Tensor:
    return tensor.movedim(-1, -3)


def _empty(like: Tensor, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return like.new_empty((*like.shape[:-3], *size, like.shape[-3]), dtype=dtype)


def _launch(
    kernel: Any,
    count: int,
    tensors: tuple[Tensor, ...],
    shape: tuple[int, ...],
    window: Window,
    more: dict[str, Any] | None = None,
) -> None:
    channels, height, width = shape[-3:]
    tall, wide = window.outputs((height, width))
    kernel[(triton.cdiv(count, _BLOCK),)](
        *tensors, count,
        C=channels, HEIGHT=height, WIDTH=width, OUT_HEIGHT=tall, OUT_WIDTH=wide,
        TALL=window.size[0], WIDE=window.size[1],
        STRIDE_Y=window.stride[0], STRIDE_X=window.stride[1],
        PAD_Y=window.padding[0], PAD_X=window.padding[1],
        LARGE=max(t.numel() for t in tensors) >= 2**31 - _BLOCK,
        BLOCK=_BLOCK, num_warps=4, **(more or {}),
    )  # fmt: skip


@triton.jit
def _elements(LARGE: tl.constexpr, BLOCK: tl.constexpr):
    """Which elements this program computes; short numbers are much the faster ones."""
    block = tl.program_id(0)
    if LARGE:
        block = block.to(tl.int64)
    return block * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _maxima_kernel(
    images, out, places, count,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = _elements(LARGE, BLOCK)
    c, pixel = i % C, i // C
    image = pixel // (OUT_HEIGHT * OUT_WIDTH)
    y = pixel // OUT_WIDTH % OUT_HEIGHT * STRIDE_Y - PAD_Y
    x = pixel % OUT_WIDTH * STRIDE_X - PAD_X
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.full((BLOCK,), -1, tl.int32)
    for tap in tl.static_range(TALL * WIDE):
        row, column = y + tap // WIDE, x + tap % WIDE
        inside = (i < count) & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        where = ((image * HEIGHT + row) * WIDTH + column) * C + c
        value = tl.load(images + where, mask=inside, other=float("-inf")).to(tl.float32)
        # As torch does it: the first of equal ones, and a value that is no number wins.
        better = inside & ((value > best) | (value != value) | (place < 0))
        best, place = tl.where(better, value, best), tl.where(better, tap, place)
    tl.store(out + i, best, mask=i < count)
    tl.store(places + i, place.to(tl.int8), mask=i < count)


@triton.jit
def _unpool_kernel(
    gradient, places, out, count,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = _elements(LARGE, BLOCK)
    c, pixel = i % C, i // C
    image = pixel // (HEIGHT * WIDTH)
    y, x = pixel // WIDTH % HEIGHT + PAD_Y, pixel % WIDTH + PAD_X
    total = tl.zeros((BLOCK,), tl.float32)
    # The windows over a pixel: few where the stride is large.
    for up in tl.static_range((TALL + STRIDE_Y - 1) // STRIDE_Y):
        for left in tl.static_range((WIDE + STRIDE_X - 1) // STRIDE_X):
            row, column = y // STRIDE_Y - up, x // STRIDE_X - left
            tall, wide = y - row * STRIDE_Y, x - column * STRIDE_X
            inside = (i < count) & (row >= 0) & (column >= 0) & (tall < TALL) & (wide < WIDE)
            inside = inside & (row < OUT_HEIGHT) & (column < OUT_WIDTH)
            where = ((image * OUT_HEIGHT + row) * OUT_WIDTH + column) * C + c
            chosen = tl.load(places + where, mask=inside, other=-1) == tall * WIDE + wide
            total += tl.load(gradient + where, mask=inside & chosen, other=0.0).to(tl.float32)
    tl.store(out + i, total, mask=i < count)


@triton.jit
def _pick_kernel(
    images, places, out, count,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = _elements(LARGE, BLOCK)
    c, pixel = i % C, i // C
    image = pixel // (OUT_HEIGHT * OUT_WIDTH)
    tap = tl.load(places + i, mask=i < count, other=0).to(tl.int32)
    row = pixel // OUT_WIDTH % OUT_HEIGHT * STRIDE_Y - PAD_Y + tap // WIDE
    column = pixel % OUT_WIDTH * STRIDE_X - PAD_X + tap % WIDE
    where = ((image * HEIGHT + row) * WIDTH + column) * C + c
    tl.store(out + i, tl.load(images + where, mask=i < count, other=0.0), mask=i < count)


@triton.jit
def _shared_by(row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """What the sum of a window is divided by; the window starts at (row, column)."""
    if DIVISOR > 0:
        return row * 0.0 + DIVISOR
    if COUNT_PADDING:
        tall = tl.minimum(row + TALL, HEIGHT + PAD_Y) - row
        wide = tl.minimum(column + WIDE, WIDTH + PAD_X) - column
    else:
        tall = tl.minimum(row + TALL, HEIGHT) - tl.maximum(row, 0)
        wide = tl.minimum(column + WIDE, WIDTH) - tl.maximum(column, 0)
    return (tall * wide).to(tl.float32)


@triton.jit
def _averages_kernel(
    images, out, count,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    LARGE: tl.constexpr, BLOCK: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    i = _elements(LARGE, BLOCK)
    c, pixel = i % C, i // C
    image = pixel // (OUT_HEIGHT * OUT_WIDTH)
    y = pixel // OUT_WIDTH % OUT_HEIGHT * STRIDE_Y - PAD_Y
    x = pixel % OUT_WIDTH * STRIDE_X - PAD_X
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(TALL * WIDE):
        row, column = y + tap // WIDE, x + tap % WIDE
        inside = (i < count) & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        where = ((image * HEIGHT + row) * WIDTH + column) * C + c
        total += tl.load(images + where, mask=inside, other=0.0).to(tl.float32)
    shared = _shared_by(y, x, HEIGHT, WIDTH, PAD_Y, PAD_X, TALL, WIDE, COUNT_PADDING, DIVISOR)
    tl.store(out + i, total / shared, mask=i < count)


@triton.jit
def _spread_kernel(
    gradient, out, count,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    LARGE: tl.constexpr, BLOCK: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    i = _elements(LARGE, BLOCK)
    c, pixel = i % C, i // C
    image = pixel // (HEIGHT * WIDTH)
    y, x = pixel // WIDTH % HEIGHT + PAD_Y, pixel % WIDTH + PAD_X
    total = tl.zeros((BLOCK,), tl.float32)
    for up in tl.static_range((TALL + STRIDE_Y - 1) // STRIDE_Y):
        for left in tl.static_range((WIDE + STRIDE_X - 1) // STRIDE_X):
            row, column = y // STRIDE_Y - up, x // STRIDE_X - left
            top, start = row * STRIDE_Y - PAD_Y, column * STRIDE_X - PAD_X
            inside = (i < count) & (row >= 0) & (column >= 0)
            inside = inside & (row < OUT_HEIGHT) & (column < OUT_WIDTH)
            inside = inside & (y - PAD_Y - top < TALL) & (x - PAD_X - start < WIDE)
            where = ((image * OUT_HEIGHT + row) * OUT_WIDTH + column) * C + c
            value = tl.load(gradient + where, mask=inside, other=0.0).to(tl.float32)
            shared = _shared_by(
                top, start, HEIGHT, WIDTH, PAD_Y, PAD_X, TALL, WIDE, COUNT_PADDING, DIVISOR
            )
            total += tl.where(inside, value / shared, 0.0)
    tl.store(out + i, total, mask=i < count)
