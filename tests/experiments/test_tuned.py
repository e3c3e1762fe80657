"""Tuning cells: points that share a training share it; each is judged by its own adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedmeta.experiments import tuned
from fedmeta.experiments.cell import Cell
from fedmeta.repeats import Repeat
from fedmeta.together import Outcome

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
    count, train = 0, tuned.train_repeats

    def counted(repeats: Sequence[Repeat], callbacks: Sequence[Any] = ()) -> list[Outcome]:
        nonlocal count
        count += 1
        return train(repeats, callbacks)

    monkeypatch.setattr(tuned, "train_repeats", counted)
    cell = Cell(("tuning", "x"), {**SMALL, "algorithm": algorithm}, 2, grid=grid)
    found = tuned.search(cell, base or {}, {"execution": {"threads": 1}}, lambda _: [])
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
