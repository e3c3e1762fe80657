"""summary.json: every cell for machines, computed from the result files.

Only results that were obtained as their cells are declared now are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments import ahead, held_out, tuning
from experiments.cell import Key
from experiments.declaration import TUNING
from experiments.goals import OUTSIDE, goals, outside_goals
from experiments.registry import EXPERIMENTS, all_cells, cells
from experiments.results import SUMMARY, Result, Results
from fedmeta.core.storage import write_json


def write_summary(results: Results, *, quick: bool = False) -> dict[str, Any]:
    """Compute the summary of a folder of results and keep it there."""
    summary = summary_of(results, quick=quick)
    results.folder.mkdir(parents=True, exist_ok=True)
    write_json(results.folder / SUMMARY, summary)
    return summary


def summary_of(results: Results, *, quick: bool = False) -> dict[str, Any]:
    """All numbers of a folder of results: by experiment and key, then verdicts.

    Accuracies are in percent. `older` names the cells whose numbers are those of an older default.
    Table 1 has none of them.
    """
    current = current_results(results, quick=quick)
    older = older_results(results, current, quick=quick)
    found = {**current, **older}
    readers = {name: each.summarised for name, each in EXPERIMENTS.items()}
    summary: dict[str, Any] = {"unit": "percent"}
    for name, summarised in {TUNING: tuning.summarised, **readers}.items():
        mine = {key[1:]: result for key, result in found.items() if key[0] == name}
        summary[name] = _nested(summarised(mine))
    summary["older"] = {
        name: sorted("/".join(key[1:]) for key in older if key[0] == name) for name in readers
    }
    repeats = {key[1:]: result["repeats"] for key, result in found.items() if key[0] == "table1"}
    summary["ahead"] = ahead.compared(repeats)
    summary["goals"] = goals(summary)
    summary[OUTSIDE] = outside_goals(summary)
    summary[held_out.FOLDER] = held_out.studies(results.folder)
    return summary


def current_results(results: Results, *, quick: bool = False) -> dict[Key, Result]:
    """The results of all cells that are declared now and have one.

    A search that is outdated takes with it what rests on it, were its point the same as ever.
    """
    found: dict[Key, Result] = {}
    for cell in all_cells(quick=quick):
        rests = cell.tuned is None or cell.tuned in found  # tuning cells come first
        result = results.current(cell) if rests else None
        if result is not None:
            found[cell.key] = result
    return found


def older_results(
    results: Results, current: Mapping[Key, Result], *, quick: bool = False
) -> dict[Key, Result]:
    """Results of cells as they are declared now, from before a default beneath them changed.

    Args:
        results: where they lie.
        current: those of today, which need no others.
        quick: of the small version.
    """
    found: dict[Key, Result] = {}
    for name in EXPERIMENTS:
        if name == "table1":  # what is compared must have been run as it is today
            continue
        for cell in cells(name, quick=quick):
            rests = cell.tuned is None or cell.tuned in found or cell.tuned in current
            result = results.declared(cell) if rests and cell.key not in current else None
            if result is not None:
                found[cell.key] = result
    return found


def _nested(entries: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Keys as tables within tables, in the order they come."""
    tables: dict[str, Any] = {}
    for key, value in entries:
        place = tables
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = value
    return tables
