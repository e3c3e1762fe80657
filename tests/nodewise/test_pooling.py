from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn import functional

from fedmeta.engine.nodewise.geometry import Window
from fedmeta.engine.nodewise.pooling import average_pool, max_pool
from nodewise.loops import close, randn

WINDOWS = {
    "halves": Window((2, 2), (2, 2), (0, 0), (1, 1), False),
    "same, even": Window((3, 3), (2, 2), (0, 0), (1, 1), True, False),
    "same, odd": Window((3, 3), (2, 2), (1, 1), (1, 1), True, False),
    "overlapping": Window((3, 2), (1, 1), (1, 1), (1, 1), False),
    "gaps between": Window((2, 2), (3, 3), (1, 0), (1, 1), True),
    "counts the border": Window((3, 3), (2, 2), (1, 1), (1, 1), True, True),
    "divides by 5": Window((3, 3), (2, 2), (1, 1), (1, 1), True, False, 5),
}
DILATED = Window((2, 3), (2, 1), (1, 1), (2, 3), False)


def torch_max(images: Tensor, window: Window) -> Tensor:
    return functional.max_pool2d(
        images, window.size, window.stride, window.padding, window.dilation, window.ceil_mode
    )


def torch_average(images: Tensor, window: Window) -> Tensor:
    return functional.avg_pool2d(
        images,
        window.size,
        window.stride,
        window.padding,
        window.ceil_mode,
        window.count_padding,
        window.divisor,
    )


PAIRS = {"max": (max_pool, torch_max), "average": (average_pool, torch_average)}
CASES = [*product(PAIRS, WINDOWS.values()), ("max", DILATED)]
NAMES = [f"{kind}, {name}" for kind, name in product(PAIRS, WINDOWS)] + ["max, dilated"]


def orders(pool: object, images: Tensor, window: Window) -> list[Tensor]:
    """Value, gradient, its pull-back, and that one's gradient."""

    def loss(at: Tensor) -> Tensor:
        pooled = pool(at.sin(), window)
        return (pooled.exp() * torch.linspace(0.5, 1.5, pooled.numel()).reshape(pooled.shape)).sum()

    def second(at: Tensor) -> Tensor:
        gradient, pull = vjp(grad(loss), at)
        return pull(gradient.cos())[0]

    return [
        pool(images, window),
        grad(loss)(images),
        second(images),
        grad(lambda at: second(at).sin().sum())(images),
    ]


@pytest.mark.parametrize(("kind", "window"), CASES, ids=NAMES)
class TestAgainstTorch:
    """Every order of derivative, for one node and for many."""

    def test_alone(self, kind: str, window: Window):
        pool, reference = PAIRS[kind]
        images = randn(2, 3, 8, 7)
        close(orders(pool, images, window), orders(reference, images, window))

    def test_a_single_image(self, kind: str, window: Window):
        pool, reference = PAIRS[kind]
        images = randn(3, 7, 8)
        close(pool(images, window), reference(images, window))
        close(
            grad(lambda at: pool(at, window).sin().sum())(images),
            grad(lambda at: reference(at, window).sin().sum())(images),
        )

    def test_many_nodes(self, kind: str, window: Window):
        pool, reference = PAIRS[kind]
        images = randn(2, 3, 3, 8, 7)
        actual = vmap(lambda at: orders(pool, at, window), in_dims=1)(images)
        for place in range(3):
            close([t[place] for t in actual], orders(reference, images[:, place], window))

    def test_nested(self, kind: str, window: Window):
        pool, reference = PAIRS[kind]
        images = randn(2, 2, 1, 2, 8, 7)
        actual = vmap(vmap(lambda at: orders(pool, at, window)))(images)
        for one, two in product(range(2), range(2)):
            expected = orders(reference, images[one, two], window)
            close([t[one, two] for t in actual], expected)


@pytest.mark.parametrize("kind", PAIRS)
def test_many_nodes_in_channels_last_memory(kind: str):
    pool, reference = PAIRS[kind]
    window = WINDOWS["same, odd"]
    images = randn(3, 2, 7, 7, 4).movedim(-1, -3)
    actual = vmap(lambda at: orders(pool, at, window))(images)
    for place in range(3):
        close([t[place] for t in actual], orders(reference, images[place], window))


@pytest.mark.parametrize("kind", PAIRS)
def test_only_the_factor_is_mapped(kind: str):
    # Places that all nodes share and gradients that they do not, and the other way about.
    pool, reference = PAIRS[kind]
    window, image, factors = WINDOWS["overlapping"], randn(1, 2, 6, 6), randn(3, 1, 2, 7, 7)
    factors = factors[..., : pool(image, window).shape[-2], :]

    def pulled(pool: object, image: Tensor, factor: Tensor) -> Tensor:
        return vjp(lambda at: pool(at, window), image)[1](factor)[0]

    images = randn(3, 1, 2, 6, 6)
    by_factor = vmap(lambda factor: pulled(pool, image, factor))(factors)
    by_image = vmap(lambda at: pulled(pool, at, factors[0]))(images)
    for place in range(3):
        close(by_factor[place], pulled(reference, image, factors[place]))
        close(by_image[place], pulled(reference, images[place], factors[0]))


class TestMaxima:
    """What is special about the largest of a window."""

    @pytest.mark.parametrize("window", [*WINDOWS.values(), DILATED])
    def test_the_first_of_equals_takes_the_gradient(self, window: Window):
        images = torch.zeros(2, 1, 2, 8, 7, dtype=torch.float64)
        weights = randn(*torch_max(images[0], window).shape)
        actual = vmap(grad(lambda at: (max_pool(at, window) * weights).sum()))(images)
        expected = grad(lambda at: (torch_max(at, window) * weights).sum())(images[0])
        assert torch.equal(actual, expected.expand(2, *expected.shape))

    def test_rounded_images_have_many_ties(self):
        images = (2 * randn(3, 2, 3, 9, 9)).round()
        window = WINDOWS["same, odd"]
        actual = vmap(lambda at: orders(max_pool, at, window))(images)
        for place in range(3):
            close([t[place] for t in actual], orders(torch_max, images[place], window))

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_no_number_goes_through_as_in_torch(self, value: float):
        images = randn(2, 1, 2, 8, 8)
        images[0, 0, 1, 2:6, 3] = value
        window = WINDOWS["same, even"]
        slope = lambda pool: grad(lambda at: pool(at, window).sum())  # noqa: E731
        values, slopes = vmap(lambda at: (max_pool(at, window), slope(max_pool)(at)))(images)
        for place in range(2):
            expected = torch_max(images[place], window), slope(torch_max)(images[place])
            torch.testing.assert_close((values[place], slopes[place]), expected, equal_nan=True)
        assert values[0].isnan().any() == (value != value)
        assert not values[1].isnan().any()

    def test_all_of_a_window_minus_infinity(self):
        images = torch.full((1, 1, 4, 4), -torch.inf, dtype=torch.float64)
        window = WINDOWS["halves"]
        gradient = grad(lambda at: max_pool(at, window).sum())(images)
        assert torch.equal(gradient, grad(lambda at: torch_max(at, window).sum())(images))

    def test_nan_in_averages(self):
        images = randn(1, 1, 8, 8)
        images[0, 0, 3, 3] = torch.nan
        window = WINDOWS["same, even"]
        expected = torch_average(images, window)
        torch.testing.assert_close(average_pool(images, window), expected, equal_nan=True)
        assert 0 < expected.isnan().sum() < expected.numel()


axis = st.tuples(
    st.integers(1, 5),  # size of the window
    st.integers(1, 4),  # stride
    st.integers(0, 2),  # padding
    st.integers(1, 3),  # dilation
    st.integers(0, 12),  # pixels beyond the fewest
)


@given(axis, axis, st.booleans())
def test_outputs_are_those_of_torch(rows: tuple, columns: tuple, ceil_mode: bool):
    pairs = list(zip(rows, columns, strict=True))
    size, stride, padding, dilation = pairs[:4]
    padding = tuple(min(p, s // 2) for p, s in zip(padding, size, strict=True))
    reach = [d * (s - 1) + 1 for s, d in zip(size, dilation, strict=True)]
    fewest = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    space = [f + more for f, more in zip(fewest, pairs[4], strict=True)]
    window = Window(size, stride, padding, dilation, ceil_mode)
    images = torch.zeros(1, 1, *space)
    assert window.outputs(space) == torch_max(images, window).shape[2:]
    assert max_pool(images, window).shape == torch_max(images, window).shape
    if dilation == (1, 1):
        assert window.outputs(space) == torch_average(images, window).shape[2:]


def test_outputs_over_the_border():
    sizes = [
        Window((size, size), (stride, stride), (size // 2, 0), (1, 1), ceil_mode)
        for size, stride, ceil_mode in product(range(1, 5), range(1, 6), (True, False))
    ]
    for window, space in product(sizes, range(4, 12)):
        images = torch.zeros(1, 1, space, space)
        assert window.outputs((space, space)) == torch_max(images, window).shape[2:]


def test_how_averages_divide():
    assert WINDOWS["divides by 5"].average_arguments == {"COUNT_PADDING": False, "DIVISOR": 5}
    assert WINDOWS["halves"].average_arguments == {"COUNT_PADDING": True, "DIVISOR": 0}
