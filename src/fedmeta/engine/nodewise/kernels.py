"""Which kernel computes a convolution: a fixed rule from device, dtype and geometry."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from fedmeta.engine.nodewise import matrix_products, torch_convolution
from fedmeta.engine.nodewise.geometry import Geometry, Slot

_FUSED_TYPES = (torch.float32, torch.bfloat16)


def evaluate(
    free: Slot, first: Tensor, second: Tensor, geometry: Geometry, bias: Tensor | None = None
) -> Tensor:
    """The derivative of ⟨g, x ∗ w + b⟩ by the slot `free`; operands in the order x, w, g.

    On a GPU our own kernels take float32 and bfloat16, batched products the rest. A CPU and
    geometries that only torch knows (grouped, transposed, three-dimensional) get torch's kernels.
    """
    if first.is_cuda and geometry.is_plain:
        if len(geometry.stride) <= 2 and _fuses(first):
            from fedmeta.engine.nodewise import triton_convolution

            return triton_convolution.evaluate(free, first, second, geometry, bias)
        output = matrix_products.evaluate(free, first, second, geometry)
        if bias is None:
            return output
        return output + bias.reshape(len(bias), 1, -1, *[1] * len(geometry.stride))
    return torch_convolution.evaluate(free, first, second, geometry, bias)


def weight_and_bias(x: Tensor, g: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The derivatives of ⟨g, x ∗ w + b⟩ by w and by b."""
    if not (g.is_cuda and geometry.is_plain):
        return torch_convolution.weight_and_bias(x, g, geometry)
    if len(geometry.stride) <= 2 and _fuses(g):
        from fedmeta.engine.nodewise import triton_convolution

        return triton_convolution.weight_and_bias(x, g, geometry)
    by_bias = g.sum((1, *range(3, g.ndim)))
    if len(g) < len(x):
        by_bias = by_bias.expand(len(x), -1)
    return matrix_products.evaluate("w", x, g, geometry), by_bias


def _fuses(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype in _FUSED_TYPES and has_triton()


@cache
def has_triton() -> bool:
    """Whether our own GPU kernels can be compiled."""
    return find_spec("triton") is not None
