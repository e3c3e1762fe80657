"""Derivatives of many nodes at once in `NodewiseLayers`, and node by node in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from fedmeta.core.tree import Tree
from fedmeta.engine.nodewise import matrix_products, torch_convolution
from fedmeta.engine.nodewise.geometry import Geometry, Slot
from fedmeta.engine.nodewise.layers import NodewiseLayers

Loss = Callable[[Tree, Tensor], Tensor]
Derivative = Callable[[Tree, Tensor, Tree], Any]

ALL_ORDERS = ("value", "gradient", "curvature")


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual: Any, expected: Any) -> None:
    """Equal up to rounding in float64, in every leaf."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def parameters(model: nn.Module, nodes: int, seed: int = 0) -> Tree:
    """Parameters for every node: those of the model and some noise of the node's own."""
    names = dict(model.named_parameters())
    return {
        name: leaf.detach() + 0.3 * randn(nodes, *leaf.shape, seed=seed + place)
        for place, (name, leaf) in enumerate(names.items())
    }


def loss_of(model: nn.Module) -> Loss:
    """A scalar of the model's outputs that has derivatives of every order."""

    def loss(theta: Tree, x: Tensor) -> Tensor:
        outputs = functional_call(model, theta, (x,)).reshape(-1)
        return (outputs.sin() * torch.linspace(0.5, 1.5, outputs.numel()).to(outputs)).sum()

    return loss


def derivative(loss: Loss, order: str) -> Derivative:
    """The loss, its gradient, its Hessian times v, or the gradient of ⟨v, Hessian · v⟩."""

    def curvature(theta: Tree, x: Tensor, v: Tree) -> Tree:
        _, pull = vjp(lambda at: grad(loss)(at, x), theta)
        return pull(v)[0]

    def bend(theta: Tree, x: Tensor, v: Tree) -> Tensor:
        product = curvature(theta, x, v)
        return torch.stack([(product[name] * v[name]).sum() for name in v]).sum()

    return {
        "value": lambda theta, x, _: loss(theta, x),
        "gradient": lambda theta, x, _: grad(loss)(theta, x),
        "curvature": curvature,
        "third": grad(bend),
    }[order]


def node_by_node(function: Derivative, theta: Tree, x: Tensor, v: Tree) -> Any:
    """The function for one node after the other, stacked."""
    rows = [
        function({k: t[i] for k, t in theta.items()}, x[i], {k: t[i] for k, t in v.items()})
        for i in range(len(x))
    ]
    if isinstance(rows[0], Tensor):
        return torch.stack(rows)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def check(model: nn.Module, x: Tensor, orders: tuple[str, ...] = ALL_ORDERS) -> None:
    """All nodes at once give what each gives alone in plain torch; x has a leading node axis."""
    model = model.double()
    theta, v = parameters(model, len(x)), parameters(model, len(x), seed=100)
    for order in orders:
        function = derivative(loss_of(model), order)
        with NodewiseLayers():
            actual = vmap(function)(theta, x, v)
        close(actual, node_by_node(function, theta, x, v))


def evaluate_by(name: str) -> Callable[..., Tensor]:
    """What `fedmeta.engine.nodewise.kernels.evaluate` is, with a kernel chosen by name."""
    kernels = {"torch": torch_convolution, "products": matrix_products}

    def evaluate(
        free: Slot, first: Tensor, second: Tensor, geometry: Geometry, bias: Tensor | None = None
    ) -> Tensor:
        chosen = kernels[name] if geometry.is_plain else torch_convolution
        output = chosen.evaluate(free, first, second, geometry)
        if bias is None:
            return output
        return output + bias.reshape(len(bias), 1, -1, *[1] * len(geometry.stride))

    return evaluate
