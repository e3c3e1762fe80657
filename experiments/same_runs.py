"""Cells that come to the same runs: what one of them trained, another need not train again.

Two experiments may ask for one and the same training, a tuned cell may come to the settings it
started from, and as many gradient evaluations may be as many rounds. A seed fixes everything, so
the result is the same. And a training of fewer rounds is the beginning of one of more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from experiments.cell import Cell, stored_settings
from experiments.results import Result, Results, point_table
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged


def runs_of(cell: Cell, settings: RunSpec) -> str | None:
    """All that decides the runs of a cell, as text; None for searches and tasks in a row.

    Args:
        cell: for its seeds and what is kept of a run.
        settings: as they are trained: at the tuned point and with the final number of rounds.

    Example:
        >>> one, other = (Cell(key, {"algorithm": "fedavg"}, 2) for key in (("rho", "x1"), ("a",)))
        >>> runs_of(one, one.build()) == runs_of(other, other.build())
        True
    """
    if cell.grid or cell.tasks is not None:
        return None
    return json.dumps(
        [stored_settings(settings), list(cell.seeds), cell.final_loss, cell.gradient],
        sort_keys=True,
    )


def differ_in_rounds_at_most(cell: Cell, other: Cell) -> bool:
    """Whether two cells declare trainings that differ in their number of rounds at most.

    Example:
        >>> short, long = (Cell(("a",), {"training": {"rounds": each}}, 2) for each in (5, 9))
        >>> differ_in_rounds_at_most(short, long)
        True
    """
    return _without_rounds(cell) == _without_rounds(other)


def _without_rounds(cell: Cell) -> Cell:
    training = {**cell.settings.get("training", {}), "rounds": None}
    settings = {**cell.settings, "training": training}
    return replace(cell, key=(), settings=settings, equal=None, equal_settings={})


def results_by_runs(cells: Iterable[Cell], results: Results) -> dict[str, Result]:
    """The runs that have a current result, and that result.

    The result itself, not where it lies: its cell may come to other runs meanwhile.

    Args:
        cells: whose results may be taken.
        results: where they lie.
    """
    known: dict[str, Result] = {}
    for cell in cells:
        if (found := results.current(cell)) is None:
            continue
        point = point_table(cell, found["point"])
        if cell.equal is not None:  # its rounds were scaled: as many as its runs had
            finished = {each["rounds"] for each in found["repeats"] if not each["diverged"]}
            if len(finished) != 1:
                continue
            point = merged([point, {"training": {"rounds": finished.pop()}}])
        runs = runs_of(cell, cell.build(point))
        if runs is not None:
            known.setdefault(runs, found)
    return known
