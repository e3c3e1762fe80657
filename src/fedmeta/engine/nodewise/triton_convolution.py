"""Convolutions for all nodes in one GPU kernel each, without columns in memory (Triton).

Every kernel is a matrix product whose left operand is gathered from the input while it runs:

    forward    out[m, k] = Σ_r  x[pixel m, tap and channel r] · w[k, r]
    weight     out[k, r] = Σ_m  g[m, k] · x[pixel m, tap and channel r]

with m over a node's batch and pixels, r over taps and channels, channels innermost in memory. The
input adjoint is the forward kernel with the kernel turned about its centre.

float32 products are sums of tensor-core products of the operands' parts, three of TF32 or six of
bfloat16 ones, with the error of float32 arithmetic (measured: 1e-7 to 2e-7); sums are in float32.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-unimported"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmeta.engine.nodewise.geometry import Geometry, Slot
from fedmeta.engine.nodewise.triton_operands import (
    bfloat16_parts,
    channels_last,
    pixel_sum,
    turned,
)


def evaluate(
    free: Slot, first: Tensor, second: Tensor, geometry: Geometry, bias: Tensor | None = None
) -> Tensor:
    """The derivative of ⟨g, x ∗ w + b⟩ by the slot `free`; operands in the order x, w, g."""
    if len(geometry.stride) == 1:  # one spatial axis is two, the first of length 1
        flat = evaluate(free, first.unsqueeze(-2), second.unsqueeze(-2), _flat(geometry), bias)
        return flat.squeeze(-2)
    rounded = torch.backends.cuda.matmul.allow_tf32
    height, width = geometry.kernel[2:]
    if free == "w":
        return _weight_adjoint(first, second, geometry, rounded)
    once = (1,) * len(geometry.stride)
    if free == "g":
        images, weight = first, second.permute(0, 1, 3, 4, 2)
        motion = geometry.stride, once, geometry.padding
        size = geometry.outputs[1:]
    else:
        images, weight = second, turned(first)
        reach = (geometry.dilation[0] * (height - 1), geometry.dilation[1] * (width - 1))
        border = (reach[0] - geometry.padding[0], reach[1] - geometry.padding[1])
        motion = once, geometry.stride, border
        size = geometry.inputs[1:]
    nodes = max(len(images), len(weight), 1 if bias is None else len(bias))
    if len(images) < nodes:
        images = images.expand(nodes, *images.shape[1:])
    result = _convolve(
        channels_last(images),
        weight.contiguous(),
        bias,
        *motion,
        geometry.dilation,
        size,
        rounded,
    )
    return result.permute(0, 1, 4, 2, 3)


def weight_and_bias(x: Tensor, g: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The derivatives of ⟨g, x ∗ w + b⟩ by w and by b."""
    if len(geometry.stride) == 1:
        flat = _flat(geometry)
        by_weight, by_bias = weight_and_bias(x.unsqueeze(-2), g.unsqueeze(-2), flat)
        return by_weight.squeeze(-2), by_bias
    rounded, split = torch.backends.cuda.matmul.allow_tf32, None
    if _splits(g, geometry):
        by_bias, split = pixel_sum(g, 2 if rounded else 3)
    else:
        by_bias, _ = pixel_sum(g)
    if len(g) < len(x):
        by_bias = by_bias.expand(len(x), -1)
    return _weight_adjoint(x, g, geometry, rounded, split), by_bias


def _splits(values: Tensor, geometry: Geometry) -> bool:
    """Whether the weight kernel takes parts, which tensor cores can transpose, or all as it is."""
    return values.dtype == torch.float32 and _taps(geometry) > 32


def _taps(geometry: Geometry) -> int:
    return geometry.inputs[0] * geometry.kernel[2] * geometry.kernel[3]


def _flat(geometry: Geometry) -> Geometry:
    return Geometry(
        (geometry.inputs[0], 1, *geometry.inputs[1:]),
        (*geometry.kernel[:2], 1, *geometry.kernel[2:]),
        (1, *geometry.stride),
        (0, *geometry.padding),
        (1, *geometry.dilation),
        geometry.transposed,
        (0, *geometry.output_padding),
        geometry.groups,
    )


def _convolve(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    spread: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    size: tuple[int, ...],
    rounded: bool,
) -> Tensor:
    """x (nodes, batch, H, W, C) and w (nodes or 1, K, h, w, C), both contiguous; bias (…, K).

    Pixels of x stand `spread` apart.
    """
    nodes, batch, height, width, channels = x.shape
    sets, outputs, tall, wide, _ = w.shape
    out = x.new_empty((nodes, batch, *size, outputs))
    pixels = size[0] * size[1]
    together = sets == 1 and (bias is None or len(bias) == 1)  # all nodes are one large batch
    programs, count = (1, nodes * batch * pixels) if together else (nodes, batch * pixels)
    # Measured on an H200. One product of rounded factors needs fewer registers than three.
    columns = _power(outputs, 128 if rounded else 64)
    rows, depth, warps, stages = 64, 32, 4, 1
    if channels % 32 != 0:
        rows, depth, stages = 128, _power(channels * tall * wide, 32), 3
    elif rounded and columns > 32:
        stages = 3
    elif not rounded and columns == 32:
        warps, stages = 2, 3
    grid = (triton.cdiv(count, rows) * triton.cdiv(outputs, columns), programs)
    _forward_kernel[grid](
        x, w, w if bias is None else bias.contiguous(), out, count,
        x.stride(0), w.stride(0) if sets > 1 else 0,
        outputs if bias is not None and len(bias) > 1 else 0, out.stride(0),
        C=channels, K=outputs, TALL=tall, WIDE=wide,
        HEIGHT=height, WIDTH=width, OUT_WIDTH=size[1], PIXELS=pixels,
        BIASED=bias is not None, LARGE=x.numel() >= 2**31,
        STRIDE_Y=stride[0], STRIDE_X=stride[1], SPREAD_Y=spread[0], SPREAD_X=spread[1],
        PAD_Y=padding[0], PAD_X=padding[1], STEP_Y=dilation[0], STEP_X=dilation[1],
        PRECISION="tf32" if rounded else "tf32x3",
        ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _weight_adjoint(
    images: Tensor,
    gradient: Tensor,
    geometry: Geometry,
    rounded: bool,
    split: Tensor | None = None,
) -> Tensor:
    """(nodes, K, C, *kernel), channels last in memory; `split`: the gradient's parts, if known."""
    kernel, stride = geometry.kernel[2:], geometry.stride
    padding, dilation = geometry.padding, geometry.dilation
    taps = _taps(geometry)
    x, g = (channels_last(t) for t in (images, gradient))
    if _splits(x, geometry):
        count = 2 if rounded else 3
        x, g = bfloat16_parts(x, count), bfloat16_parts(g, count) if split is None else split
    else:
        x, g = x.unsqueeze(0), g.unsqueeze(0)
    parts, nodes = len(x), max(x.shape[1], g.shape[1])
    batch, height, width, channels = x.shape[2:]
    tall, wide, outputs = g.shape[3:]
    count = batch * tall * wide
    if taps <= 32:
        rows, columns = _power(outputs, 32), _power(taps, 32)
        depth, warps, most = 64, 2, 15
    else:
        rows, columns = _power(outputs, 128 if rounded else 64), 64
        depth, warps, most = 32, 4, 1
    blocks = triton.cdiv(outputs, rows) * triton.cdiv(taps, columns)
    # Where a node has few sums they are split to fill the machine, the same way for any number of
    # nodes.
    share = triton.cdiv(triton.cdiv(count, most), depth) * depth
    pieces = triton.cdiv(count, share)
    out = x.new_empty((pieces, nodes, outputs, *kernel, channels), dtype=torch.float32)
    _weight_kernel[(blocks, nodes, pieces)](
        x, g, out, count, share,
        x.stride(0), x.stride(1) if x.shape[1] > 1 else 0,
        g.stride(0), g.stride(1) if g.shape[1] > 1 else 0,
        out.stride(0), out.stride(1),
        C=channels, K=outputs, TALL=kernel[0], WIDE=kernel[1],
        HEIGHT=height, WIDTH=width, OUT_WIDTH=wide, PIXELS=tall * wide,
        STRIDE_Y=stride[0], STRIDE_X=stride[1], PAD_Y=padding[0], PAD_X=padding[1],
        STEP_Y=dilation[0], STEP_X=dilation[1], PARTS=parts,
        PRECISION="tf32" if rounded else "tf32x3",
        ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=warps, num_stages=3,
    )  # fmt: skip
    out = out.sum(0) if pieces > 1 else out[0]
    return out.permute(0, 1, 4, 2, 3).to(images.dtype)


def _power(size: int, most: int) -> int:
    """The power of two that covers a size, from 16 (what a tensor core takes) to `most`."""
    return int(min(most, max(16, triton.next_power_of_2(size))))


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    if a.dtype == tl.float32:
        return tl.dot(a, b, total, input_precision=PRECISION)
    return tl.dot(a, b, total)


@triton.jit
def _forward_kernel(
    x, w, bias, out, count, x_node, w_node, bias_node, out_node,
    C: tl.constexpr, K: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_WIDTH: tl.constexpr, PIXELS: tl.constexpr,
    BIASED: tl.constexpr, LARGE: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    SPREAD_Y: tl.constexpr, SPREAD_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, STEP_Y: tl.constexpr, STEP_X: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    R: tl.constexpr = C * TALL * WIDE
    blocks: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
    node = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    image, pixel = m // PIXELS, m % PIXELS
    if LARGE:
        image = image.to(tl.int64)
    y, z = pixel // OUT_WIDTH * STRIDE_Y - PAD_Y, pixel % OUT_WIDTH * STRIDE_X - PAD_X
    x += node * x_node
    w += node * w_node
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, R, DEPTH):
        r = start + tl.arange(0, DEPTH)
        if C % DEPTH == 0:  # all of one tap: one test per pixel
            tap = start // C
            row, column = y + tap // WIDE * STEP_Y, z + tap % WIDE * STEP_X
            inside = m < count
            if SPREAD_Y > 1 or SPREAD_X > 1:
                inside = inside & (row % SPREAD_Y == 0) & (column % SPREAD_X == 0)
                row, column = row // SPREAD_Y, column // SPREAD_X
            inside = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
            place = ((image * HEIGHT + row) * WIDTH + column) * C
            c = start % C + tl.arange(0, DEPTH)
            a = tl.load(x + place[:, None] + c[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(w + k[:, None] * R + r[None, :], mask=k[:, None] < K, other=0.0)
        else:
            tap = r // C
            row = y[:, None] + (tap // WIDE * STEP_Y)[None, :]
            column = z[:, None] + (tap % WIDE * STEP_X)[None, :]
            inside = (m < count)[:, None] & (r < R)[None, :]
            if SPREAD_Y > 1 or SPREAD_X > 1:
                inside = inside & (row % SPREAD_Y == 0) & (column % SPREAD_X == 0)
                row, column = row // SPREAD_Y, column // SPREAD_X
            inside = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
            place = ((image[:, None] * HEIGHT + row) * WIDTH + column) * C
            a = tl.load(x + place + (r % C)[None, :], mask=inside, other=0.0)
            known = (k < K)[:, None] & (r < R)[None, :]
            b = tl.load(w + k[:, None] * R + r[None, :], mask=known, other=0.0)
        total = _dot(a, tl.trans(b), total, PRECISION)
    if BIASED:
        total += tl.load(bias + node * bias_node + k, mask=k < K, other=0.0)[None, :]
    place = node * out_node + m.to(tl.int64)[:, None] * K + k[None, :]
    tl.store(out + place, total, mask=(m < count)[:, None] & (k < K)[None, :])


@triton.jit
def _weight_kernel(
    x, g, out, count, share, x_part, x_node, g_part, g_node, out_piece, out_node,
    C: tl.constexpr, K: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_WIDTH: tl.constexpr, PIXELS: tl.constexpr,
    STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, STEP_Y: tl.constexpr, STEP_X: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    R: tl.constexpr = C * TALL * WIDE
    blocks: tl.constexpr = (R + COLUMNS - 1) // COLUMNS
    node, piece = tl.program_id(1).to(tl.int64), tl.program_id(2)
    k = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    r = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    tap = r // C
    down, right = tap // WIDE * STEP_Y - PAD_Y, tap % WIDE * STEP_X - PAD_X
    x += node * x_node
    g += node * g_node
    end = tl.minimum((piece + 1) * share, count)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(piece * share, end, DEPTH):
        m = start + tl.arange(0, DEPTH)
        image, pixel = m // PIXELS, m % PIXELS
        known = (m < end)[:, None]
        row = (pixel // OUT_WIDTH * STRIDE_Y)[:, None] + down[None, :]
        column = (pixel % OUT_WIDTH * STRIDE_X)[:, None] + right[None, :]
        inside = known & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        if R % COLUMNS != 0:
            inside = inside & (r < R)[None, :]
        if K % ROWS != 0:
            known = known & (k < K)[None, :]
        factor = g + m[:, None] * K + k[None, :]
        source = x + ((image[:, None] * HEIGHT + row) * WIDTH + column) * C + (r % C)[None, :]
        a = tl.trans(tl.load(factor, mask=known, other=0.0))
        b = tl.load(source, mask=inside, other=0.0)
        if PARTS == 1:
            total = _dot(a, b, total, PRECISION)
        else:
            a1 = tl.trans(tl.load(factor + g_part, mask=known, other=0.0))
            b1 = tl.load(source + x_part, mask=inside, other=0.0)
            # A sum of its own for every step: the tensor cores' long sums lose bits.
            some = tl.dot(a1, b)
            some = tl.dot(a, b1, some)
            if PARTS == 3:
                a2 = tl.trans(tl.load(factor + 2 * g_part, mask=known, other=0.0))
                b2 = tl.load(source + 2 * x_part, mask=inside, other=0.0)
                some = tl.dot(a1, b1, some)
                some = tl.dot(a2, b, some)
                some = tl.dot(a, b2, some)
            total += tl.dot(a, b, some)
    place = piece * out_piece + node * out_node + k[:, None] * R + r[None, :]
    tl.store(out + place, total, mask=(k < K)[:, None] & (r < R)[None, :])
