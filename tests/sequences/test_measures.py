from __future__ import annotations

import pytest

from fedmeta.studies.sequences.measures import (
    average,
    forgetting,
    forward,
    mean_matrix,
    measured,
    new,
)

MATRIX = [[0.1, 0.2, 0.3], [0.9, 0.3, 0.4], [0.7, 0.8, 0.5], [0.6, 0.5, 1.0]]


def test_measures_are_what_their_formulas_say() -> None:
    assert average(MATRIX) == pytest.approx(0.7)
    assert forgetting(MATRIX) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.5)) / 2)
    assert new(MATRIX) == pytest.approx((0.8 + 1.0) / 2)
    assert forward(MATRIX) == pytest.approx(((0.3 - 0.2) + (0.5 - 0.3)) / 2)


def test_joint_training_forgets_nothing_because_it_has_no_order() -> None:
    assert average(MATRIX[-1:]) == pytest.approx(0.7)
    assert forgetting(MATRIX[-1:]) is None
    assert new(MATRIX[-1:]) is None


def test_diverged_seeds_are_counted_and_have_no_number() -> None:
    other = [[value + 0.1 for value in row] for row in MATRIX]
    found = [
        {"seed": 0, "diverged": False, "accuracy": MATRIX, "cost": [1.0, 2.0]},
        {"seed": 1, "diverged": False, "accuracy": other, "cost": [2.0, 3.0]},
        {"seed": 2, "diverged": True, "why": "…"},
    ]
    table = measured(found)
    assert table["average"]["mean"] == pytest.approx(0.75)
    assert table["average"]["n"] == 2
    assert table["cost"]["mean"] == 2.0
    assert table["diverged"] == 1
    assert mean_matrix(found)[3][2]["mean"] == pytest.approx(1.05)
    assert measured(found, "precise")["average"]["mean"] is None
