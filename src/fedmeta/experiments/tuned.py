"""Tuning cells: `fedmeta.tuning`'s rule with the repeats of a point trained together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedmeta.experiments.cell import Cell
from fedmeta.experiments.repeats import Repeat, federation, record, seeded, train_repeats
from fedmeta.experiments.results import point_table
from fedmeta.intervals import interval
from fedmeta.settings import Table
from fedmeta.training import Callback
from fedmeta.tuning import HELD_OUT, grid


def search(
    cell: Cell, machine: Table, progress: Callable[[str], Sequence[Callback]]
) -> dict[str, Any]:
    """Try every point of the grid; returns `trials` and the `best` point, if any finished.

    The federation is drawn once and its targets are taken out before anything is trained or
    scaled. Every repeat holds out another fifth of the sources, which judges, and starts from
    other weights. A point with a diverged run is out.

    Args:
        cell: with its grid.
        machine: settings of the machine.
        progress: given a label, the callbacks of a point.
    """
    trials: list[dict[str, Any]] = []
    for point in grid(cell.grid):
        settings = cell.build(point_table(cell, point), machine)
        data = replace(settings.data, scaling_from="sources")  # the pool has the targets
        drawn = federation(data, settings.training.seed)
        repeats = [
            Repeat(seeded(replace(settings, data=data), seed), drawn.hold_out(HELD_OUT, seed))
            for seed in cell.seeds
        ]
        label = ", ".join(f"{name}={value}" for name, value in point.items())
        kept = [
            record(seed, outcome)
            for seed, outcome in zip(
                cell.seeds, train_repeats(repeats, progress(f"{cell.path} {label}")), strict=True
            )
        ]
        values = [each["accuracy"][str(each["steps"])] for each in kept if not each["diverged"]]
        judged = interval(values).mean if len(values) == cell.repeats else None
        trials.append({"point": point, "values": values, "mean": judged})
    finished = [trial for trial in trials if trial["mean"] is not None]
    best = max(finished, key=lambda trial: float(trial["mean"]), default=None)
    return {"trials": trials, "best": None if best is None else best["point"]}
