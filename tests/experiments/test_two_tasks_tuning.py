"""Tuning λ: on held-out source nodes of both tasks, and what a tuned cell makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import two_tasks
from experiments.cell import Cell, Tasks
from experiments.results import Results
from experiments.running import Plan, run_cells, state
from experiments.training import pool
from experiments.two_tasks import draw
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.training.many import train_many
from fedmeta.training.train import RunRequest

pytest.importorskip("sklearn")

SETTINGS: dict[str, Any] = {
    "algorithm": "admm-fedmeta",
    "data": {"name": "digits", "nodes": 15, "samples": [10, 12]},
    "training": {"rounds": 4, "evaluate_every": 0},
    "model": {"hidden": [8]},
    "prior": {"strength": 0.5},
}
TASKS = Tasks((0.0, 0.5), (0.5, 1.0), (0.5, 1.0))
TUNING = Cell(("tuning", "x"), SETTINGS, 2, grid={"strength": [0.1, 50.0]}, tasks=TASKS)
TUNED = Cell(("mine", "x"), SETTINGS, 2, tuned=TUNING.key, tasks=TASKS)


def strengths(repeats: list[RunRequest]) -> set[float]:
    algorithms = (each.spec.algorithm for each in repeats)
    return {a.prior.strength for a in algorithms if isinstance(a, ADMMFedMeta) and a.prior}


def test_it_looks_at_source_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunRequest] = []

    def watched(repeats: list[RunRequest], callbacks: Any = ()) -> Any:
        seen.extend(repeats)
        return train_many(repeats, callbacks)

    monkeypatch.setattr(two_tasks, "train_many", watched)
    found = two_tasks.search_strength(TUNING, {}, lambda _: [])
    assert [trial["point"]["strength"] for trial in found["trials"]] == [0.1, 50.0]
    assert all(len(trial["values"]) == 2 for trial in found["trials"])
    assert found["best"] in [trial["point"] for trial in found["trials"]]
    assert strengths(seen) == {0.1, 50.0}
    assert len(seen) == 2 * (1 + 2)
    for each in seen:
        seed = each.spec.training.seed
        data = replace(each.spec.data_settings, scaling_from="sources")
        problem = draw(pool(data, seed), data, TASKS, seed)
        allowed = {node.name for task in problem.tasks for node in task.sources}
        assert {node.name for node in each.federation.nodes} <= allowed
        assert each.federation.targets


def test_a_tuned_cell_takes_the_strength_that_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, seen = Results(tmp_path), []

    def watched(repeats: list[RunRequest], callbacks: Any = ()) -> Any:
        seen.extend(repeats)
        return train_many(repeats, callbacks)

    list(run_cells([TUNING], Plan(results), lambda _: []))
    tuning = results.read(TUNING.key)
    assert tuning is not None
    results.write(TUNING.key, {**tuning, "best": {"strength": 50.0}})
    monkeypatch.setattr(two_tasks, "train_many", watched)
    list(run_cells([TUNED], Plan(results), lambda _: []))
    found = results.read(TUNED.key)
    assert found is not None
    assert found["point"] == {"strength": 50.0}
    assert strengths(seen) == {50.0}
    assert state(TUNED, results) == "done"
    results.write(TUNING.key, {**tuning, "best": {"strength": 0.1}})
    assert state(TUNED, results) == "outdated"
