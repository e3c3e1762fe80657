from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.registry import cells
from experiments.results import Results
from experiments.running import Plan, run_cells
from experiments.sequences import _best, goals, table
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


HELD_OUT = {"euclidean": 70.0, "fisher": 69.0, "replay+euclidean": 75.0}


def reached(methods: dict[str, Any], harder: dict[str, Any] | None = None) -> list[bool | None]:
    found = {"split-cifar10": methods, "split-cifar10-few": harder or {}}
    held = {name: {"held_out": value} for name, value in HELD_OUT.items()}
    tuning = {"sequences": {name: {"admm-fedmeta": held} for name in found}}
    return [each[3] for each in goals({"sequences": found, "tuning": tuning})]


def test_goals() -> None:
    found = {
        "none": row(60, 12, 80),
        "euclidean": row(70, 4, 78.5),
        "fisher": row(70, 6, 79),
        "replay": row(75, 0, 80),  # not chosen: nobody tuned it
        "replay+euclidean": row(76, 1, 78),
        "joint": row(80, None, None),
    }
    assert reached(found) == [True] * 6
    less = {**found, "euclidean": row(70, 4.5, 77)}
    assert reached(less) == [True, False, False, True, True, True]
    less = {**found, "replay+euclidean": row(76, 5, 77)}
    assert reached(less) == [True, True, True, False, False, True]
    assert reached({**found, "joint": row(82, None, None)})[5] is False
    assert reached({}) == [None] * 6
    easy = {**found, "none": row(80, 3, 82)}
    assert reached(easy) == [None] * 6  # the harder one has not been run
    assert reached(easy, found) == [True] * 6
