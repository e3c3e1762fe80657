"""The release gate: sums, its rule, and how often it errs on 10 target nodes of 200 samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedmeta.core.errors import DataError, SettingError
from fedmeta.studies.gate import FallSums, Verdict, add_up, judge

NODES, SAMPLES, SEEDS = 10, 200, 400


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
        case = rng.choice(4, SAMPLES, p=both)
        old[str(number)] = (case <= 1).astype(float)
        new[str(number)] = ((case == 0) | (case == 2)).astype(float)
    return judge(add_up(old, new, "accuracy"), "accuracy", task="task 2", against="old")


def test_a_planted_regression_of_two_points_is_caught() -> None:
    assert sum(drawn(seed, 0.02, 0.03).blocked for seed in range(SEEDS)) >= 19 * SEEDS / 20


@pytest.mark.parametrize("disagree", [0.0, 0.03, 0.1, 0.2])
def test_a_harmless_update_passes(disagree: float) -> None:
    assert sum(drawn(seed, 0.0, disagree).blocked for seed in range(SEEDS)) <= SEEDS / 20


def samples(share: float, count: int = 100) -> Any:
    """What a model has right: the first so many."""
    return (np.arange(count) < round(share * count)).astype(float)


def test_sums_of_devices_give_the_interval_of_all_paired_samples() -> None:
    """With equally many samples on every node: that of the falls of samples, within nodes."""
    shares = [(0.9, 0.8), (0.8, 0.81), (0.7, 0.6), (0.95, 0.9)]
    pairs = [(samples(a), samples(b)) for a, b in shares]
    told = [FallSums.of_node(old, new, "accuracy") for old, new in pairs]
    found = judge(sum(told[:2], sum(told[2:], FallSums())), "accuracy", task="t", against="o")
    falls = np.array([old - new for old, new in pairs])
    within = ((falls - falls.mean(axis=1, keepdims=True)) ** 2).sum() / (4 * 99)
    assert found.fall == pytest.approx(100 * falls.mean())
    assert found.half_width == pytest.approx(196.6 * math.sqrt(within / 400), rel=1e-3)
    assert found.blocked


def test_a_fall_on_a_single_node_is_no_accident() -> None:
    """Nodes differ in how they fall; which nodes are stored is no matter of chance."""
    told = [FallSums.of_node(samples(0.9), samples(0.9), "accuracy")] * 9
    told += [FallSums.of_node(samples(0.9), samples(0.6), "accuracy")]
    found = judge(sum(told, FallSums()), "accuracy", task="t", against="o")
    assert found.fall == pytest.approx(3.0)
    assert found.blocked


def test_a_few_samples_may_be_an_accident() -> None:
    told = [FallSums.of_node(samples(1.0, 5), samples(0.8, 5), "accuracy")]
    told += [FallSums.of_node(samples(1.0, 5), samples(1.0, 5), "accuracy")] * 2
    found = judge(sum(told, FallSums()), "accuracy", task="t", against="o")
    assert found.fall == pytest.approx(100 / 15)
    assert not found.blocked
    assert "cannot be ruled out" in found.line
    one = FallSums.of_node(samples(1.0, 1), samples(0.0, 1), "accuracy")
    assert (one.fall, one.noise) == (1.0, 1.0)


def test_more_comparisons_make_wider_intervals() -> None:
    sums = sum([FallSums.of_node(samples(0.9), samples(0.86), "accuracy")] * 3, FallSums())
    one, many = (judge(sums, "accuracy", task="t", against="o", comparisons=n) for n in (1, 10))
    assert one.half_width is not None
    assert many.half_width is not None
    assert many.half_width > one.half_width


def test_an_error_rises_in_percent_of_the_one_in_service() -> None:
    old = np.linspace(1.0, 3.0, 20)
    sums = sum([FallSums.of_node(old, 1.1 * old, "mse")] * 3, FallSums())
    found = judge(sums, "mse", task="t", against="o")
    assert found.fall == pytest.approx(10.0)
    assert found.blocked
    assert "has an error that rises by 10.0" in found.line


def test_what_is_not_finite_is_blocked() -> None:
    broken = np.full(5, math.nan)
    sums = sum([FallSums.of_node(samples(0.8, 5), broken, "accuracy")] * 3, FallSums())
    found = judge(sums, "accuracy", task="t", against="o")
    assert found.blocked
    assert "not finite" in found.line


def test_too_few_nodes_and_bad_limits_are_refused() -> None:
    two = FallSums(2, 20, 0.1, 0.01, 1.8)
    with pytest.raises(DataError, match="t has 2 target nodes, too few"):
        judge(two, "accuracy", task="t", against="o")
    with pytest.raises(SettingError, match="limit is -1"):
        judge(two, "accuracy", task="t", against="o", limit=-1)
