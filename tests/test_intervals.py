from __future__ import annotations

import math

import numpy as np
import pytest

from fedmeta.evaluation.intervals import FEWEST, interval, student_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (29, 2.0452), (1000, 1.9623)],
)
def test_quantiles_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize("values", [[0.25], [0.0, 0.5]])
def test_fewer_than_three_values_have_no_interval_where_three_are_asked_for(
    values: list[float],
) -> None:
    assert interval(values, FEWEST) == (0.25, None)
    assert str(interval([0.25])) == "0.25"


def test_equal_values_have_an_interval_of_zero() -> None:
    assert interval([0.5, 0.5, 0.5]) == (0.5, 0.0)


def test_by_hand() -> None:
    mean, half_width = interval([1.0, 3.0, 5.0])
    assert mean == 3
    assert half_width == pytest.approx(4.3027 * 2 / math.sqrt(3), abs=1e-4)


def test_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        mean, half_width = interval(rng.normal(3.0, 2.0, size=4).tolist())
        assert half_width is not None
        hits += abs(mean - 3.0) <= half_width
    assert 0.92 <= hits / 400 <= 0.98
