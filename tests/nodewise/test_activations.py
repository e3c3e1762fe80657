from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from fedmeta.engine.nodewise.activations import elu
from nodewise.loops import close, randn

ALPHAS = (1.0, 0.3, 2.0)


def orders(function: object, x: Tensor, alpha: float) -> list[Tensor]:
    """Value and the first three derivatives, entry by entry."""
    weights = torch.linspace(0.5, 1.5, x.numel()).to(x).reshape(x.shape)
    results = [function(x, alpha)]
    slope = lambda t: (function(t, alpha) * weights).sum()  # noqa: E731
    for _ in range(3):
        slope = grad(slope)
        results.append(slope(x))
        slope = (lambda inner: lambda t: inner(t).sum())(slope)
    return results


@pytest.mark.parametrize("alpha", ALPHAS)
def test_derivatives_of_torch(alpha: float):
    x = 3 * randn(2, 3, 4)
    close(orders(elu, x, alpha), orders(functional.elu, x, alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_derivatives_for_many_nodes(alpha: float):
    x = randn(4, 2, 3)
    actual = vmap(lambda row: orders(elu, row, alpha), in_dims=1)(x)
    for place in range(2):
        expected = orders(functional.elu, x[:, place], alpha)
        close([t[place] for t in actual], expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_at_zero_as_torch(alpha: float):
    x = torch.zeros(3, dtype=torch.float64)
    values = orders(elu, x, alpha)
    close(values, orders(functional.elu, x, alpha))
    assert values[0].tolist() == [0.0] * 3
    close(values[1], alpha * torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64))
    assert values[2].tolist() == [0.0] * 3  # from the right, as in torch
    assert values[3].tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_zero(dtype: torch.dtype):
    x = torch.tensor([-1e4, -80.0, 80.0, 1e4], dtype=dtype)
    actual = orders(elu, x, 1.0)
    assert actual[0].tolist() == [-1.0, -1.0, 80.0, 1e4]
    torch.testing.assert_close(actual[1][:2], torch.zeros(2, dtype=dtype), rtol=0, atol=1e-7)
    assert (actual[1][2:] > 0).all()
    for derivative in actual[2:]:
        torch.testing.assert_close(derivative, torch.zeros(4, dtype=dtype), rtol=0, atol=1e-7)


def test_nan_as_torch():
    x = torch.full((2,), torch.nan, dtype=torch.float64)
    actual, expected = orders(elu, x, 1.0)[:2], orders(functional.elu, x, 1.0)[:2]
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert actual[0].isnan().all()


def test_some_operands_shared():
    # The mapped axis is on the gradient alone, on the input alone.
    x, v = randn(3, 4), randn(5, 3, 4, seed=1)

    def product(function: object, v: Tensor, x: Tensor) -> Tensor:
        return grad(lambda t: (grad(lambda s: function(s, 0.5).square().sum())(t) * v).sum())(x)

    actual = vmap(lambda v: product(elu, v, x))(v)
    for place in range(5):
        close(actual[place], product(functional.elu, v[place], x))
    actual = vmap(lambda x: product(elu, v[0], x))(v)
    for place in range(5):
        close(actual[place], product(functional.elu, v[0], v[place]))
