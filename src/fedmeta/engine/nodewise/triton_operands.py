"""Operands of the convolution kernels, made in one pass each (Triton).

Weights turned about their centre, float32 numbers as sums of bfloat16 ones, and gradients summed
over pixels.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-unimported"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SHARE = 512  # pixels that one program adds up


def channels_last(images: Tensor) -> Tensor:
    """Images (…, channels, height, width) with their channels innermost in memory and last."""
    return images.movedim(-3, -1).contiguous()


def turned(weight: Tensor) -> Tensor:
    """(nodes, K, C, h, w) → (nodes, C, h, w, K), turned about the centre; contiguous."""
    nodes, outputs, channels, tall, wide = weight.shape
    out = weight.new_empty((nodes, channels, tall, wide, outputs))
    blocks = triton.cdiv(outputs, 32) * triton.cdiv(channels, 32)
    _turn_kernel[(blocks, tall * wide, nodes)](
        weight, out, *weight.stride(), K=outputs, C=channels, TALL=tall, WIDE=wide, BLOCK=32,
        num_warps=4,
    )  # fmt: skip
    return out


def bfloat16_parts(values: Tensor, count: int) -> Tensor:
    """`count` bfloat16 numbers (8 bits each) that sum to a float32 one (24 bits); contiguous."""
    out = values.new_empty((count, *values.shape), dtype=torch.bfloat16)
    size = values.numel()
    _parts_kernel[(triton.cdiv(size, 2048),)](
        values, out, size, COUNT=count, BLOCK=2048, num_warps=8
    )
    return out


def pixel_sum(g: Tensor, parts: int = 0) -> tuple[Tensor, Tensor]:
    """Σ over batch and space of g (nodes, batch, K, h, w), (nodes, K); in the same pass its parts.

    The parts are those of `bfloat16_parts`, with channels last.
    """
    g = g.movedim(2, -1).contiguous()  # of one, two or three dimensions of space
    split = g.new_empty((parts, *g.shape), dtype=torch.bfloat16)
    g = g.flatten(1, -2)
    nodes, count, outputs = g.shape
    pieces = triton.cdiv(count, _SHARE)
    out = g.new_empty((nodes, pieces, outputs), dtype=torch.float32)
    columns = triton.next_power_of_2(outputs)
    _sum_kernel[(pieces, nodes)](
        g, out, split, count, g.numel(), K=outputs, PARTS=parts, SHARE=_SHARE,
        ROWS=max(1, 4096 // columns), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return out.sum(1).to(g.dtype), split


@triton.jit
def _turn_kernel(
    w, out, w_node, w_k, w_c, w_y, w_x,
    K: tl.constexpr, C: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (C + BLOCK - 1) // BLOCK
    k = tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    tap, node = tl.program_id(1), tl.program_id(2).to(tl.int64)
    w += node * w_node + (TALL - 1 - tap // WIDE) * w_y + (WIDE - 1 - tap % WIDE) * w_x
    inside = (k < K)[:, None] & (c < C)[None, :]
    tile = tl.load(w + k[:, None] * w_k + c[None, :] * w_c, mask=inside)
    out += node * (C * TALL * WIDE * K) + tap * K
    tl.store(
        out + c[:, None] * (TALL * WIDE * K) + k[None, :], tl.trans(tile), mask=tl.trans(inside)
    )


@triton.jit
def _parts_kernel(values, out, size, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rest = tl.load(values + place, mask=place < size, other=0.0)
    for part in tl.static_range(COUNT):
        piece = rest.to(tl.bfloat16)
        tl.store(out + part * size + place, piece, mask=place < size)
        rest -= piece.to(tl.float32)


@triton.jit
def _sum_kernel(
    g, out, split, count, size, K: tl.constexpr, PARTS: tl.constexpr,
    SHARE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    piece, node = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k = tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, SHARE, ROWS):
        within = start + tl.arange(0, ROWS)
        m = piece * SHARE + within
        known = ((within < SHARE) & (m < count))[:, None] & (k < K)[None, :]
        place = (node * count + m)[:, None] * K + k[None, :]
        rest = tl.load(g + place, mask=known, other=0.0).to(tl.float32)
        total += rest
        for part in tl.static_range(PARTS):
            some = rest.to(tl.bfloat16)
            tl.store(split + part * size + place, some, mask=known)
            rest -= some.to(tl.float32)
    place = (node * tl.num_programs(0) + piece) * K + k
    tl.store(out + place, tl.sum(total, axis=0), mask=k < K)
