"""Directions of a layer: all singular values alike, and the length independent of the size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedmeta.algorithms.spectral import directions


def direction(leaf: Tensor) -> Tensor:
    return directions({"x": leaf})["x"]


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=dtype)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (10, 300), (32, 3, 3, 3), (6, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_values_are_alike(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    turned = direction(drawn(*shape, dtype=dtype))
    assert turned.shape == shape
    assert turned.dtype == dtype
    rows = shape[0]
    values = torch.linalg.svdvals(turned.reshape(rows, -1))
    columns = turned.numel() // rows
    values = values / max(1, rows / columns) ** 0.5
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_it_is_near_the_nearest_orthogonal_matrix() -> None:
    matrix = drawn(8, 20)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    turned = direction(matrix)
    cosine = (turned * (u @ vt)).sum() / turned.norm() / (u @ vt).norm()
    assert float(cosine) > 0.98


@pytest.mark.parametrize("shape", [(5,), (7, 1), (1, 7), ()])
def test_vectors_keep_their_direction(shape: tuple[int, ...]) -> None:
    vector = drawn(*shape)
    turned = direction(vector)
    length = vector.numel() ** 0.5 if len(shape) < 2 or shape[0] > 1 else 1.0
    torch.testing.assert_close(turned, vector / vector.norm() * length)


@pytest.mark.parametrize("scale", [1e-6, 1e9])
@pytest.mark.parametrize("shape", [(5,), (4, 9)])
def test_length_of_contributions_does_not_matter(shape: tuple[int, ...], scale: float) -> None:
    here, there = direction(drawn(*shape)), direction(scale * drawn(*shape))
    torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


def test_it_points_along_its_argument_and_zero_stays() -> None:
    """Downhill, if the argument is: their product is positive."""
    for shape in ((3,), (4, 9), (9, 4), (8, 2, 3, 3)):
        leaf = drawn(*shape)
        assert float((leaf * direction(leaf)).sum()) > 0
        assert torch.equal(direction(torch.zeros(shape)), torch.zeros(shape))


def test_repeats_can_be_computed_together() -> None:
    many = drawn(3, 4, 9)
    torch.testing.assert_close(vmap(direction)(many), torch.stack([direction(m) for m in many]))
