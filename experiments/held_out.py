"""What held-out source nodes said of the settings that the default has, or might have.

A study is a file `held-out/NAME.json` beside the other results, with rows as `python -m
benchmarks.held_out_nodes --results FILE` writes them: one per change, data set and partition. The
first change is what the others are compared with, seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.experiment import Summary
from experiments.names import named
from experiments.statistics import Entry, rounded
from experiments.tables import MISSING, markdown, points
from fedmeta.core.errors import RunFolderError
from fedmeta.core.storage import read_json
from fedmeta.evaluation.intervals import Interval, interval

FOLDER = "held-out"
Row = dict[str, Any]
_PARTS = {"change", "partition", "data", "seeds", "accuracies"}


def studies(results: Path) -> dict[str, list[Entry]]:
    """The changes that every study tried, see `compared`.

    Args:
        results: the folder of all results.
    """
    files = sorted((results / FOLDER).glob("*.json"), key=lambda file: file.stem)
    return {file.stem: compared(_rows(file)) for file in files}


def _rows(file: Path) -> list[Row]:
    rows: list[Row] | None = read_json(file, "study").get("rows")
    if not rows:
        raise RunFolderError(f"{file} (study) has no rows", "restore or remove the file")
    for row in rows:
        if missing := _PARTS - row.keys():
            names = ", ".join(sorted(missing))
            raise RunFolderError(f"{file} (study) has a row without {names}", "run it again")
    return rows


def compared(rows: Sequence[Row]) -> list[Entry]:
    """One entry per change: by place what it reaches and gains, and its mean gain over all places.

    A change that was not tried everywhere, or lost a run somewhere, has no mean gain.

    Example:
        >>> place = {"partition": "fixed-pairs", "data": "cifar10", "seeds": 2}
        >>> compared([
        ...     {"change": "a", **place, "accuracies": [80.0, 82.0]},
        ...     {"change": "b", **place, "accuracies": [81.0, 83.5]},
        ... ])[1]["gain"]
        {'mean': 1.25, 'ci95': 3.18}
    """
    first = rows[0]["change"]
    base = {_place(row): row for row in rows if row["change"] == first}
    found = []
    for change in dict.fromkeys(row["change"] for row in rows):
        mine = {_place(row): row for row in rows if row["change"] == change}
        others = {} if change == first else base
        places = {place: _entry(row, others.get(place)) for place, row in mine.items()}
        gains = [places[place]["gain"] if place in places else None for place in base]
        found.append({"change": change, "places": places, "gain": _mean(gains)})
    return found


def _place(row: Row) -> str:
    return f"{row['partition']}/{row['data']}"


def _entry(row: Row, base: Row | None) -> Entry:
    """A mean, and the paired gain in points where all runs of both finished."""
    values, seeds = row["accuracies"], row["seeds"]
    mean, width = interval(values) if values else (None, None)
    entry = {"mean": rounded(mean), "ci95": rounded(width), "n": seeds, "gain": None}
    if base and (found := gain(base["accuracies"], values, seeds)):
        entry["gain"] = {"mean": rounded(found.mean), "ci95": rounded(found.half_width)}
    return entry


def gain(then: Sequence[float], now: Sequence[float], seeds: int) -> Interval | None:
    """The paired differences of so many seeds; None where a run of either has diverged."""
    if not len(then) == len(now) == seeds:
        return None
    return interval([b - a for a, b in zip(then, now, strict=True)])


def _mean(gains: Sequence[Entry | None]) -> Entry | None:
    """The mean of gains with its 95 % interval, the places taken to be independent."""
    known = [each for each in gains if each is not None]
    if len(known) < len(gains):
        return None
    widths = [each["ci95"] for each in known]
    width = None if None in widths else math.hypot(*widths) / len(widths)
    return {"mean": rounded(fmean(each["mean"] for each in known)), "ci95": rounded(width)}


def table(summary: Summary) -> str:
    """What held-out source nodes reach with settings that the default might have."""
    parts = []
    for study, changes in summary[FOLDER].items():
        places = dict.fromkeys(place for each in changes for place in each["places"])
        rows = []
        for place in places:
            partition, data = place.split("/")
            reached = [_gained(each["places"].get(place)) for each in changes]
            rows.append([partition, named(data), *reached])
        rows.append(["mean gain", "", *(points(each["gain"]) for each in changes)])
        heads = ["partition", "data", *(each["change"] for each in changes)]
        parts.append(f"*{study}*\n\n{markdown(heads, rows)}")
    return "\n\n".join(parts) or f"*{MISSING}*"


def _gained(entry: Entry | None) -> str:
    """What is reached and, in points, gained."""
    if entry is None or entry["mean"] is None:
        return "–"
    return f"{entry['mean']:.2f}" + (f" ({points(entry['gain'])})" if entry["gain"] else "")
