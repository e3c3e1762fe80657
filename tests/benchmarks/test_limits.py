from __future__ import annotations

import pytest

from benchmarks.limits import gradient_operations, limit_ms, matrix_rate, product_operations
from benchmarks.problems import Problem, cifar, fashion, parameters, perceptron

# Multiplications and additions: 2 · (channels in · 3 · 3) · channels out · pixels, 2 · in · out.
CIFAR = [
    2 * 27 * 32 * 32 * 32,
    2 * 288 * 64 * 16 * 16,
    2 * 576 * 128 * 8 * 8,
    2 * (128 * 4 * 4) * 10,
]
FASHION = [2 * 9 * 32 * 28 * 28, 2 * 288 * 64 * 14 * 14, 2 * (64 * 7 * 7) * 10]
DIGITS = [2 * 64 * 64, 2 * 64 * 10]


@pytest.mark.parametrize(
    ("problem", "products"),
    [(cifar(1), CIFAR), (fashion(1), FASHION), (perceptron(64, 1), DIGITS)],
    ids=["cifar", "fashion", "digits"],
)
def test_products_of_all_layers_are_counted(problem: Problem, products: list[int]) -> None:
    network = problem.module("cpu")
    assert product_operations(network, problem.shape) == products
    assert gradient_operations(network, problem.shape) == 2 * products[0] + 3 * sum(products[1:])


def test_counting_leaves_no_hooks_behind() -> None:
    network = fashion(1).module("cpu")
    assert product_operations(network, (1, 28, 28)) == product_operations(network, (1, 28, 28))


def test_limit_of_a_round_is_four_gradients_per_node() -> None:
    # 60,284,928 operations per sample and gradient, 3 · 15 + 15 of them, 40 nodes.
    assert limit_ms(cifar(40), rate=1e12) == pytest.approx(60_284_928 * 60 * 40 / 1e9)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_rate_of_a_matrix_product_is_that_of_a_computer(precision: str) -> None:
    assert 1e6 < matrix_rate("cpu", precision, size=64) < 1e16


def test_parameters_are_those_of_the_network() -> None:
    problem = perceptron(7, 1)
    network = problem.module("cpu")
    assert parameters(problem.network) == sum(leaf.numel() for leaf in network.parameters())
