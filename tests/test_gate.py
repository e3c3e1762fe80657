"""The release gate: sums, its rule, and how often it errs on 10 target nodes of 200 samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmeta.core.errors import DataError, SettingError
from fedmeta.evaluation.intervals import interval
from fedmeta.studies.gate import FallSums, Verdict, add_up, judge

NODES, SAMPLES, SEEDS = 10, 200, 20


def drawn(seed: int, fall: float, disagree: float) -> Verdict:
    """Two models on nodes of unlike difficulty; answers differ on a share of samples.

    Args:
        seed: of the draw.
        fall: expected fall of the accuracy, as a share.
        disagree: share of samples that one model alone has right, at least `fall`.
    """
    rng = np.random.default_rng(seed)
    old, new = {}, {}
    for number in range(NODES):
        right = rng.uniform(0.7, 0.85)
        lost, won = (disagree + fall) / 2, (disagree - fall) / 2
        both = [right - lost, lost, won, 1 - right - won]  # both right, old, new, none
        counts = rng.multinomial(SAMPLES, both)
        old[str(number)] = (counts[0] + counts[1]) / SAMPLES
        new[str(number)] = (counts[0] + counts[2]) / SAMPLES
    return judge(add_up(old, new, "accuracy"), "accuracy", task="task 2", against="old")


def test_a_planted_regression_of_two_points_is_caught() -> None:
    assert sum(drawn(seed, 0.02, 0.03).blocked for seed in range(SEEDS)) >= 19


@pytest.mark.parametrize("disagree", [0.0, 0.03, 0.1, 0.2])
def test_a_harmless_update_passes(disagree: float) -> None:
    assert sum(drawn(seed, 0.0, disagree).blocked for seed in range(SEEDS)) <= 1


def test_sums_of_devices_give_the_paired_interval() -> None:
    old, new = [0.9, 0.8, 0.7, 0.95], [0.85, 0.81, 0.6, 0.9]
    told = [FallSums.of_node(a, b, "accuracy") for a, b in zip(old, new, strict=True)]
    halves = sum(told[:2], FallSums()) + sum(told[2:], FallSums())
    found = judge(halves, "accuracy", task="t", against="o")
    expected = interval([100 * (a - b) for a, b in zip(old, new, strict=True)])
    assert found.fall == pytest.approx(expected.mean)
    assert found.half_width == pytest.approx(expected.half_width)
    assert not found.blocked  # 4.75 ± 7: above the limit, yet perhaps an accident
    assert "cannot be ruled out" in found.line


def test_more_comparisons_make_wider_intervals() -> None:
    sums = sum([FallSums.of_node(0.9, 0.9 - d, "accuracy") for d in (0.01, 0.02, 0.04)], FallSums())
    one, many = (judge(sums, "accuracy", task="t", against="o", comparisons=n) for n in (1, 10))
    assert one.half_width is not None
    assert many.half_width is not None
    assert many.half_width > one.half_width


def test_an_error_rises_in_percent_of_the_one_in_service() -> None:
    sums = sum([FallSums.of_node(2.0, 2.2, "mse")] * 3, FallSums())
    found = judge(sums, "mse", task="t", against="o")
    assert found.fall == pytest.approx(10.0)
    assert found.blocked
    assert "has an error that rises by 10.0" in found.line


def test_what_is_not_finite_is_blocked() -> None:
    sums = sum([FallSums.of_node(0.9, math.nan, "accuracy")] * 3, FallSums())
    found = judge(sums, "accuracy", task="t", against="o")
    assert found.blocked
    assert "not finite" in found.line


def test_too_few_nodes_and_bad_limits_are_refused() -> None:
    two = FallSums(2, 0.1, 0.01, 1.8)
    with pytest.raises(DataError, match="t has 2 target nodes, too few"):
        judge(two, "accuracy", task="t", against="o")
    with pytest.raises(SettingError, match="limit is -1"):
        judge(two, "accuracy", task="t", against="o", limit=-1)
