"""Tuning cells: points that share a training share it; each is judged by its own adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from experiments import training, tuning
from experiments.cell import Cell
from fedmeta.training.run import Outcome
from fedmeta.training.train import RunRequest

SMALL = {
    "data": {"name": "digits", "nodes": 15, "samples": [10, 16]},
    "training": {"rounds": 3},
}
GRID = {"step_size": [0.1, 0.3], "inner.step_size": [0.01, 1.0]}


def searched(
    algorithm: str,
    grid: dict[str, list[float]],
    monkeypatch: pytest.MonkeyPatch,
    base: dict[str, float] | None = None,
) -> tuple[dict[str, Any], int]:
    """What a search finds, and how many trainings it took."""
    count, train = 0, training.train_many

    def counted(repeats: Sequence[RunRequest], callbacks: Sequence[Any] = ()) -> list[Outcome]:
        nonlocal count
        count += 1
        return train(repeats, callbacks)

    monkeypatch.setattr(training, "train_many", counted)
    cell = Cell(("tuning", "x"), {**SMALL, "algorithm": algorithm}, 2, grid=grid)
    found = tuning.search(cell, base or {}, {"execution": {"threads": 1}}, lambda _: [])
    monkeypatch.undo()
    return found, count


def test_fedavg_is_trained_once_for_all_ways_to_adapt(monkeypatch: pytest.MonkeyPatch) -> None:
    found, count = searched("fedavg", GRID, monkeypatch)
    alone, _ = searched("fedavg", {"step_size": [0.3], "inner.step_size": [1.0]}, monkeypatch)
    assert count == 2
    assert len(found["trials"]) == 4
    assert found["trials"][3] == alone["trials"][0]
    by_adaptation = [trial["values"] for trial in found["trials"][2:]]
    assert by_adaptation[0] != by_adaptation[1]


def test_meta_learners_are_trained_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    _, count = searched("per-fedavg", GRID, monkeypatch)
    assert count == 4


def test_a_search_after_another_keeps_what_that_found(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"step_size": 0.9, "inner.step_size": 1.0}
    found, _ = searched("fedavg", {"step_size": [0.1, 0.3]}, monkeypatch, base)
    whole, _ = searched("fedavg", GRID, monkeypatch)
    points = [trial["point"] for trial in found["trials"]]
    assert points == [{"step_size": step, "inner.step_size": 1.0} for step in (0.1, 0.3)]
    assert found["trials"] == [whole["trials"][1], whole["trials"][3]]


def trial(point: dict[str, float], *values: float) -> dict[str, Any]:
    return {"point": point, "values": list(values), "mean": sum(values) / len(values)}


def test_a_search_goes_on_where_the_best_point_lies_at_an_end() -> None:
    beyond = {"step_size": [0.1, 0.2, 8.0, 9.0]}
    cell = Cell(("tuning", "x"), {}, 2, beyond=beyond)
    low, middle, high = ({"step_size": step, "inner": 1.0} for step in (1.0, 2.0, 3.0))
    others = [trial({"step_size": 0.5, "inner": 2.0}, 0.1, 0.1)]  # with another inner step

    def next_step(*means: float) -> float | None:
        trials = [trial(p, mean, mean) for p, mean in zip((low, middle, high), means, strict=True)]
        found = tuning.further_out(cell, trials + others)
        assert found is None or found["inner"] == 1.0
        return None if found is None else found["step_size"]

    assert next_step(0.8, 0.9, 0.8) is None
    assert next_step(0.9, 0.8, 0.8) == 0.2
    assert next_step(0.7, 0.8, 0.9) == 8.0
    assert tuning.further_out(cell, [{"point": low, "values": [], "mean": None}]) is None
    assert tuning.further_out(Cell(("tuning", "x"), {}, 2), [trial(low, 0.9)]) is None


@pytest.mark.parametrize(
    ("peak", "steps", "best"),
    [
        (0.02, [0.01, 0.02, 0.04], 0.02),  # within the grid: nothing to look for
        (0.005, [0.01, 0.02, 0.04, 0.005, 0.002], 0.005),  # until it is worse
        (0.001, [0.01, 0.02, 0.04, 0.005, 0.002], 0.002),  # until nothing lies beyond
        (0.9, [0.01, 0.02, 0.04, 0.08], 0.08),
    ],
)
def test_it_goes_on_until_that_is_worse_or_nothing_lies_beyond(
    peak: float, steps: list[float], best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def attempted(_cell: Cell, point: dict[str, float], *_: object) -> dict[str, Any]:
        tried.append(point["step_size"])
        return trial(point, 1 - abs(point["step_size"] - peak))

    monkeypatch.setattr(tuning, "_attempted", attempted)
    beyond = {"step_size": [0.002, 0.005, 0.08]}
    grid = {"step_size": [0.01, 0.02, 0.04]}
    cell = Cell(("tuning", "x"), {}, 1, grid=grid, beyond=beyond)
    found = tuning.search(cell, {"inner": 1.0}, {}, lambda _: [])
    assert tried == steps
    assert (found["grid"], found["best"]) == (grid, {"inner": 1.0, "step_size": best})
    again = tuning.search(cell, {"inner": 1.0}, {}, lambda _: [], found["trials"])
    assert (again, tried) == (found, steps)
