"""What held-out source nodes said of the settings that the default has, or might have.

A study is a file `held-out/NAME.json` beside the other results, as `python -m
benchmarks.penalty_rule --results FILE` writes it: rows, one per change, data set and partition, and
what they were obtained with. The first change is what the others are compared with, seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedmeta.experiments.statistics import Entry, rounded
from fedmeta.intervals import interval
from fedmeta.storage import read_json

FOLDER = "held-out"
Rows = Sequence[dict[str, Any]]


def studies(results: Path) -> dict[str, list[Entry]]:
    """The changes that every study tried, see `compared`.

    Args:
        results: the folder of all results.
    """
    files = sorted((results / FOLDER).glob("*.json"), key=lambda file: file.stem)
    return {file.stem: compared(read_json(file, "study")["rows"]) for file in files}


def compared(rows: Rows) -> list[Entry]:
    """One entry per change: by place what it reaches and gains, and its mean gain over places.

    Example:
        >>> place = {"partition": "fixed-pairs", "data": "cifar10"}
        >>> compared([
        ...     {"change": "a", **place, "accuracies": [80.0, 82.0]},
        ...     {"change": "b", **place, "accuracies": [81.0, 83.5]},
        ... ])[1]["gain"]
        1.25
    """
    first = rows[0]["change"] if rows else None
    base = {_place(row): row["accuracies"] for row in rows if row["change"] == first}
    found = []
    for change in dict.fromkeys(row["change"] for row in rows):
        mine = {_place(row): row["accuracies"] for row in rows if row["change"] == change}
        places = {
            "/".join(place): _entry(values, base.get(place)) for place, values in mine.items()
        }
        gains = [each["gain"] for each in places.values() if each["gain"] is not None]
        mean = rounded(fmean(gains)) if gains and change != first else None
        found.append({"change": change, "places": places, "gain": mean})
    return found


def _place(row: dict[str, Any]) -> tuple[str, str]:
    return row["partition"], row["data"]


def _entry(values: Sequence[float], base: Sequence[float] | None) -> Entry:
    """A mean and the paired gain; runs that diverged have no value, and then nothing is paired."""
    mean, width = interval(values) if values else (None, None)
    entry: Entry = {"mean": rounded(mean), "ci95": rounded(width), "n": len(values)}
    entry |= {"gain": None, "gain_ci95": None}
    if base and len(base) == len(values):
        gain = interval([now - then for then, now in zip(base, values, strict=True)])
        entry |= {"gain": rounded(gain.mean), "gain_ci95": rounded(gain.half_width)}
    return entry
