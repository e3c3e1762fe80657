"""Activations of a chain, with what derivatives need of them, each from the output u = f(h).

With c a gradient by u and u̇ = f'(h) ḣ the change of u along a direction:

    slope(c, u)        c ⊙ f'(h)                    the gradient by h
    bend(c · u̇, u)     c ⊙ f''(h) ⊙ ḣ               how that changes along the direction
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

_aten = torch.ops.aten


Kind = Literal["relu", "leaky-relu", "elu", "tanh", "sigmoid"]


@dataclass(frozen=True)
class Activation:
    """A function of single numbers.

    Args:
        value: u from h.
        slope: see above.
        bend: see above; None: it is 0, f is made of straight lines.
        kind: what it is called in compiled code.
        slant: α of an ELU, the slope below 0 of a leaky ramp.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    bend: Callable[[Tensor, Tensor], Tensor] | None
    kind: Kind
    slant: float = 0.0


def activation_of(layer: nn.Module) -> Activation | None:
    """That of a layer; None: it is no activation that is known here.

    Example:
        >>> relu = activation_of(nn.ReLU())
        >>> relu.slope(torch.ones(2), relu.value(torch.tensor([-1.0, 2.0])))
        tensor([0., 1.])
        >>> activation_of(nn.Linear(1, 1)) is None
        True
    """
    if type(layer) is nn.ELU and layer.alpha > 0:
        return _elu(float(layer.alpha))
    if type(layer) is nn.LeakyReLU and layer.negative_slope >= 0:
        return _leaky_relu(float(layer.negative_slope))
    return _PLAIN.get(type(layer))


def _elu(alpha: float) -> Activation:
    # f' is 1 where u > 0 and u + α elsewhere, and its change is u̇ where u < 0.
    return Activation(
        lambda h: _aten.elu(h, alpha),
        lambda c, u: _aten.elu_backward(c, alpha, 1.0, 1.0, True, u),
        lambda product, u: _aten.hardtanh_backward(product, u, -math.inf, 0.0),
        "elu",
        alpha,
    )


def _leaky_relu(lean: float) -> Activation:
    return Activation(
        lambda h: _aten.leaky_relu(h, lean),
        lambda c, u: _aten.leaky_relu_backward(c, u, lean, True),
        None,
        "leaky-relu",
        lean,
    )


_PLAIN = {
    nn.ReLU: Activation(torch.relu, lambda c, u: _aten.threshold_backward(c, u, 0.0), None, "relu"),
    nn.Tanh: Activation(
        torch.tanh, _aten.tanh_backward, lambda product, u: -2 * u * product, "tanh"
    ),
    nn.Sigmoid: Activation(
        torch.sigmoid, _aten.sigmoid_backward, lambda product, u: (1 - 2 * u) * product, "sigmoid"
    ),
}
