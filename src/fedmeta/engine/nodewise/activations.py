"""ELU and its derivatives, each in one pass over the numbers.

torch's own second derivative of ELU is put together from half a dozen passes. From the output
u = elu(x; α) all derivatives are short: elu' is 1 where u > 0 and u + α elsewhere, and the
derivative of that by u is 1 where u < 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedmeta.core.tree import mapped_first

_aten = torch.ops.aten


def elu(inputs: Tensor, alpha: float) -> Tensor:
    """x where x > 0, α(eˣ − 1) elsewhere.

    Example:
        >>> elu(torch.tensor([-1.0, 2.0]), 1.0)
        tensor([-0.6321,  2.0000])
    """
    result: Tensor = _Elu.apply(inputs, alpha)
    return result


class _Elu(torch.autograd.Function):
    @staticmethod
    def forward(inputs: Tensor, alpha: float) -> Any:
        return _aten.elu(inputs, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Slope.apply(gradients[0], ctx.saved_tensors[0], ctx.alpha), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], inputs: Tensor, alpha: float) -> Any:
        return _Elu.apply(inputs, alpha), in_dims[0]


class _Slope(torch.autograd.Function):
    """gradient · elu'(x), with elu' from the output."""

    @staticmethod
    def forward(gradient: Tensor, output: Tensor, alpha: float) -> Any:
        return _aten.elu_backward(gradient, alpha, 1.0, 1.0, True, output)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gradient, activation, ctx.alpha = inputs
        ctx.save_for_backward(gradient, activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient, activation = ctx.saved_tensors
        by_gradient = _Slope.apply(gradients[0], activation, ctx.alpha)
        by_activation = None
        if ctx.needs_input_grad[1]:
            # Where the output is below 0, else 0: one pass, no mask.
            product = gradient * gradients[0]
            by_activation = _aten.hardtanh_backward(product, activation, -math.inf, 0.0)
        return by_gradient, by_activation, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], gradient: Tensor, output: Tensor, alpha: float
    ) -> Any:
        return _Slope.apply(*mapped_first(info, in_dims, gradient, output), alpha), 0
