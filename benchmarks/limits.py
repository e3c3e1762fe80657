"""The arithmetic limit: operations counted from layer shapes, over the rate of a matrix product.

A layer is one matrix product per sample. Its gradient takes that product, one for the gradient of
its weights and, except in the first layer, one for the gradient of its inputs. A round of
ADMM-FedMeta is worth four such gradients per node: one over the query set and three over the
support set, since a product with the Hessian costs two. (In forward mode the first layer's share of
it costs only one; the limit would be up to 2 % lower for the networks here.)
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.problems import QUERY, SUPPORT, Problem
from benchmarks.timing import float32_rounding, milliseconds

_TYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
_SUPPORT_GRADIENTS, _QUERY_GRADIENTS = 3, 1


def limit_ms(problem: Problem, rate: float) -> float:
    """The least time of a round at a rate in operations per second, in ms."""
    samples = _SUPPORT_GRADIENTS * SUPPORT + _QUERY_GRADIENTS * QUERY
    operations = gradient_operations(problem.module("cpu"), problem.shape)
    return 1e3 * problem.nodes * samples * operations / rate


def gradient_operations(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Floating-point operations of one sample's gradient (a multiplication and an addition are 2).

    Example:
        >>> gradient_operations(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), (4,))
        84
    """
    first, *others = product_operations(network, shape)
    return 2 * first + 3 * sum(others)


def product_operations(network: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Operations of every layer's product for one sample, in the order of the layers."""
    counts = []

    def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            counts.append(2 * output.numel() * layer.weight[0].numel())
        elif isinstance(layer, nn.Linear):
            counts.append(2 * output.numel() * layer.in_features)

    hooks = [layer.register_forward_hook(count) for layer in network.modules()]
    with torch.no_grad():
        network(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return counts


def matrix_rate(device: str, precision: str, size: int | None = None) -> float:
    """Operations per second of a large square matrix product, the best of some.

    Args:
        device: "cpu" or "cuda".
        precision: "float32", "tf32" or "bf16".
        size: rows and columns; None takes 8192 on a GPU and 2048 on a CPU.
    """
    size = size or (8192 if device.startswith("cuda") else 2048)
    a, b = (torch.randn(size, size, device=device).to(_TYPES[precision]) for _ in range(2))
    with float32_rounding(precision == "tf32"):
        a @ b
        best = min(milliseconds(lambda: a @ b, device) for _ in range(5))
    return 2 * size**3 / best * 1e3
