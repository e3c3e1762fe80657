from __future__ import annotations

from typing import Any

import pytest

from experiments.ahead import compared, declared_rivals
from experiments.goals import goals
from experiments.statistics import accuracy, mean_curve, paired

LOST = {"diverged": True}


def runs(*values: float, steps: int = 1) -> list[dict[str, Any]]:
    return [
        {"seed": seed, "diverged": False, "steps": steps, "precise": {str(steps): value}}
        for seed, value in enumerate(values)
    ]


def test_diverged_runs_are_counted_beside_the_mean() -> None:
    found = accuracy([*runs(0.5, 0.7), {"seed": 2, **LOST}], "precise")
    assert found == {"mean": 60.0, "ci95": 127.06, "n": 3, "diverged": 1}
    assert accuracy([{"seed": 0, **LOST}], "precise") == {
        "mean": None, "ci95": None, "n": 1, "diverged": 1
    }  # fmt: skip


def test_what_was_not_measured_is_no_entry() -> None:
    assert accuracy(runs(0.5), "accuracy") is None


def test_accuracy_is_after_the_algorithms_own_steps() -> None:
    found = accuracy(runs(0.5, 0.7, steps=5), "precise")
    assert found is not None
    assert found["mean"] == 60


def test_differences_are_paired_by_seed() -> None:
    ours = [*runs(0.9, 0.8, 0.7), {"seed": 3, **LOST}]
    theirs = list(reversed(runs(0.8, 0.7, 0.6, 0.5)))
    found = paired(ours, theirs, "precise")
    assert (found["mean"], found["ci95"], found["n"]) == (10, 0, 3)
    assert (found["diverged"], found["diverged_other"]) == (1, 0)


def test_curves_are_means_over_the_runs_that_finished() -> None:
    curves = [
        {"diverged": False, "loss": [[1, 2], [4.0, 2.0]]},
        {"diverged": False, "loss": [[1, 2], [2.0, 1.0]]},
    ]
    assert mean_curve([*curves, LOST], "loss") == [[1, 2], [3.0, 1.5]]
    assert mean_curve([LOST], "loss") == [[], []]


@pytest.mark.parametrize(
    ("ours", "theirs", "rival"),
    [
        (runs(0.9, 0.91, 0.92), runs(0.8, 0.82, 0.81), "behind"),
        (runs(0.9, 0.91, 0.92), runs(0.8, 0.99, 0.81), "level"),  # the interval reaches below 0
        (runs(0.8, 0.8, 0.8), runs(0.8, 0.8, 0.8), "level"),
        ([*runs(0.9, 0.91), {"seed": 2, **LOST}], runs(0.8, 0.81, 0.82), "level"),
        (runs(0.9, 0.91), [{"seed": 0, **LOST}, {"seed": 1, **LOST}], "behind"),
        (runs(0.9, 0.91), [*runs(0.95), {"seed": 1, **LOST}], "level"),
        (runs(0.9), runs(0.8), "level"),  # one pair has no interval
        (runs(0.8, 0.82, 0.81), runs(0.9, 0.91, 0.92), "ahead"),
    ],
)
def test_a_rival_is_level_where_the_interval_includes_zero(
    ours: Any, theirs: Any, rival: str
) -> None:
    place = ("fixed-pairs", "cifar10")
    table = compared(
        {(*place, "admm-fedmeta", "default"): ours, (*place, "fedavg", "tuned-5"): theirs}
    )
    assert table["fixed-pairs"]["cifar10"]["rounds"]["fedavg"]["tuned-5"]["rival"] == rival


def test_budgets_are_told_apart() -> None:
    place = ("fixed-pairs", "cifar10")
    mine = {(*place, "admm-fedmeta", "default"): runs(0.9, 0.8)}
    table = compared({**mine, (*place, "fedavg", "tuned-equal"): runs(0.5, 0.5)})
    assert set(table["fixed-pairs"]["cifar10"]) == {"gradients"}
    assert compared({(*place, "fedavg", "tuned"): runs(0.5, 0.5)}) == {}


NONE = dict.fromkeys(("table1", "table2", "robustness", "sequences"), ())
EMPTY: dict[str, Any] = {"table1": {}, "table2": {}, "robustness": {}, "ahead": {}, "older": NONE}


def verdict(summary: dict[str, Any], words: str) -> bool | None:
    (found,) = (each for each in goals({**EMPTY, **summary}) if words in each["goal"])
    reached: bool | None = found["reached"]
    return reached


def entry(mean: float | None, width: float = 0.5, lost: int = 0) -> dict[str, Any]:
    return {"mean": mean, "ci95": width, "n": 10, "diverged": lost}


@pytest.mark.parametrize(
    ("mean", "near"), [(95.0, True), (94.7, False), (96.5, True), (96.7, False), (None, False)]
)
def test_overlap_with_the_paper(mean: float | None, near: bool) -> None:
    table = {"fixed-pairs": {"fashion-mnist": {"admm-fedmeta": {"paper": entry(mean)}}}}
    assert verdict({"table1": table}, "preset paper on fashion-mnist") is near


def test_goals_of_the_default() -> None:
    def reached(mean: float) -> bool | None:
        table = {"random-pairs": {"cifar10": {"admm-fedmeta": {"default-precise": entry(mean)}}}}
        return verdict({"table1": table}, "default reaches its mark on cifar10, random")

    assert (reached(83.5), reached(83.4)) == (True, False)
    assert verdict({}, "default reaches its mark on cifar10, random") is None


def test_ahead_of_all_needs_all() -> None:
    def reached(count: int, losses: int = 0) -> bool | None:
        def row(i: int) -> dict[str, Any]:
            rival = "behind" if i >= losses else "level"
            return {**entry(1.0), "diverged_other": 0, "rival": rival}

        rows = {f"v{i}": row(i) for i in range(count)}
        table = {"fixed-pairs": {"cifar10": {"rounds": {"fedavg": rows}}}}
        return verdict({"ahead": table}, "ahead on cifar10, fixed-pairs, equal rounds")

    # FedAvg and Per-FedAvg, paper and tuned, at 1, 5 and 10 updates; and 17 with all we have.
    assert declared_rivals() == {"rounds": 29, "gradients": 29}
    assert (reached(29), reached(28), reached(29, 1), reached(28, 1)) == (True, None, False, False)


def robust(lost: int = 0, mean: float = 90.0, starts: int = 3) -> dict[str, Any]:
    rows = {f"auto-{i}": entry(mean if i else 90.0, lost=lost) for i in range(starts)}
    data = dict.fromkeys(("fashion-mnist", "cifar10", "cifar100"), rows)
    return {"robustness": dict.fromkeys(("fixed-pairs", "random-pairs"), data)}


def test_robustness_goals() -> None:
    words = "no run diverges"
    assert verdict(robust(), words) is True
    assert verdict(robust(lost=1), words) is False
    assert verdict(robust(starts=2), words) is None
    near = "starts agree: fixed-pairs, fashion-mnist"
    assert verdict(robust(mean=89.0), near) is True
    assert verdict(robust(mean=88.9), near) is False
    assert verdict(robust(starts=2), near) is None


def test_forgetting_goals() -> None:
    def found(drop: float) -> dict[str, Any]:
        row = {"prior": entry(93.0), "new": entry(94.0), "drop": entry(drop)}
        return {"table2": {"fashion-mnist": {"admm-fedmeta-default": row}}}

    assert verdict(found(2.0), "table 2, fashion-mnist, prior") is True
    assert verdict(found(2.0), "table 2, fashion-mnist, new") is False
    assert verdict(found(2.0), "fashion-mnist: drop") is True
    assert verdict(found(3.0), "fashion-mnist: drop") is False
