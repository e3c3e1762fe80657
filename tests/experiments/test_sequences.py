from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.registry import cells
from experiments.results import Results
from experiments.running import Plan, run_cells
from experiments.sequences import _best, goals, summarised, table
from experiments.summary import write_summary
from fedmeta.core.errors import SettingError

pytest.importorskip("sklearn")


def test_quick_version_goes_from_cells_to_the_page(tmp_path: Path) -> None:
    results = Results(tmp_path)
    wanted = [c for c in cells("sequences", quick=True) if c.key[-1] in ("euclidean", "joint")]
    assert [cell.path for cell in wanted] == [
        "tuning/sequences/digits/admm-fedmeta/euclidean",
        "sequences/digits/euclidean",
        "sequences/digits/joint",
    ]
    machine = {"execution": {"threads": 1}}
    ended = list(run_cells(wanted, Plan(results, machine), lambda _label: []))
    assert [each.state for each in ended] == ["ran"] * 3, ended
    assert all(each.state == "kept" for each in run_cells(wanted, Plan(results), lambda _: []))
    summary = write_summary(results, quick=True)
    found = summary["sequences"]["digits"]
    assert {"average", "forgetting", "new", "average-precise", "cost"} < set(found["euclidean"])
    assert found["joint"]["forgetting"] is None
    tuned = results.read(wanted[0].key)
    assert tuned is not None
    assert tuned["best"]["strength"] == found["euclidean"]["strength"]
    assert len(tuned["trials"]) == 2
    page = table(summary)
    assert page.count("\n") == 3
    assert f"{found['euclidean']['average-precise']['mean']:.2f}" in page


def trial(strength: float, mean: float | None, new: float = 0.9) -> dict[str, Any]:
    return {"point": {"strength": strength}, "mean": mean, "new": new}


def test_strength_leaves_new_tasks_alone() -> None:
    assert _best([trial(0.0, 0.5), trial(1.0, 0.7, 0.895), trial(9.0, 0.8, 0.88)]) == {
        "strength": 1.0
    }
    assert _best([trial(0.0, 0.5), trial(1.0, None)]) == {"strength": 0.0}
    with pytest.raises(SettingError, match="λ = 0"):
        _best([trial(1.0, 0.7)])


def row(average: float, forgetting: float | None, new: float | None) -> dict[str, Any]:
    def entry(mean: float | None) -> Any:
        return None if mean is None else {"mean": mean, "ci95": 0.5, "n": 10, "diverged": 0}

    named = {"average": average, "forgetting": forgetting, "new": new}
    return {f"{name}-precise": entry(value) for name, value in named.items()}


def reached(methods: dict[str, Any]) -> list[bool | None]:
    return [each[3] for each in goals({"sequences": {"split-cifar10": methods}})]


def test_goals_of_split_cifar10() -> None:
    found = {
        "none": row(60, 12, 80),
        "auto": row(70, 3, 78.5),
        "outputs": row(70, 2, 79),
        "replay": row(78, 0, 80),
        "joint": row(80, None, None),
    }
    assert reached(found) == [True] * 6 + [None] * 3
    less = {**found, "auto": row(70, 3.5, 78)}
    assert reached(less)[:6] == [True, False, False, True, True, True]
    assert reached({**found, "joint": row(82, None, None)})[5] is False
    assert reached({**found, "none": row(80, 3, 82)})[0] is False
    assert reached({}) == [None] * 9


def test_rivals_are_behind_seed_by_seed() -> None:
    def result(*last: float) -> dict[str, Any]:
        repeats = [
            {"seed": seed, "diverged": False, "accuracy": [[0.1, 0.1], [0.5, 0.1], [0.5, value]]}
            for seed, value in enumerate(last)
        ]
        return {"repeats": repeats, "point": None}

    name = "class-incremental-cifar100-10"
    found = {
        ("sequences", name, method): result(*last)
        for method, last in (("auto", (0.9, 0.8)), ("fedewc", (0.7, 0.6)), ("fedlwf", (0.9, 0.7)))
    }
    summary: Any = {"sequences": {name: {key[-1]: entry for key, entry in summarised(found)}}}
    behind = summary["sequences"][name]["fedewc"]["behind"]
    assert behind == {"mean": 10.0, "ci95": 0.0, "n": 2, "diverged": 0, "diverged_other": 0}
    assert [each[3] for each in goals(summary)][6:] == [True, False, None]
    assert "behind auto" in table(summary)
