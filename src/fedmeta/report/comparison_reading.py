"""Comparison folders as checked values, with the runs that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmeta.core.errors import RunFolderError
from fedmeta.core.run_folder import parsing
from fedmeta.core.storage import read_json
from fedmeta.report.reading import RunFacts, is_number, read_run


@dataclass(frozen=True)
class RowFacts:
    """One algorithm of a comparison; `values` are per seed."""

    label: str
    steps: str
    rounds: int
    adaptation_steps: int
    values: tuple[float, ...]
    mean: float | None
    ci95: float | None
    before_mean: float | None
    n: int
    diverged: int
    gradient_evaluations: float | None
    bytes_per_node: float | None
    seconds: float | None
    runs: tuple[RunFacts, ...]

    @property
    def worst_decile(self) -> float | None:
        """The worst tenth of the targets, as the mean over runs that ended well."""
        found = [
            run.target_metric[self.adaptation_steps]["worst_decile"]
            for run in self.runs
            if "worst_decile" in run.target_metric.get(self.adaptation_steps, {})
        ]
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class PairedFacts:
    """The first row minus another, seed by seed."""

    against: str
    mean: float | None
    ci95: float | None


@dataclass(frozen=True)
class ComparisonFacts:
    """A comparison folder."""

    metric: str
    equal: str
    data: Mapping[str, Any]
    seeds: tuple[int, ...]
    rows: tuple[RowFacts, ...]
    paired: tuple[PairedFacts, ...]
    missing_runs: tuple[str, ...]


def read_comparison(path: Path) -> ComparisonFacts:
    """Everything a page says of a comparison; runs whose folders are gone are named, not missed.

    Raises:
        RunFolderError: comparison.json, or a run that it names, is damaged.
    """
    stored = read_json(path / "comparison.json", "result of the comparison")
    if not isinstance(stored, dict) or stored.get("format") != 1:
        raise RunFolderError(
            f"{path / 'comparison.json'} is not a comparison that this version reads",
            "use the version of fedmeta that wrote it",
        )
    with parsing(path, "comparison.json"):
        named = [[str(run) for run in row.get("runs", [])] for row in stored["rows"]]
    found = {
        run: read_run(path / run)
        for runs in named
        for run in runs
        if (path / run / "settings.json").is_file()
    }
    with parsing(path, "comparison.json"):
        rows = tuple(
            _row(row, tuple(found[run] for run in runs if run in found))
            for row, runs in zip(stored["rows"], named, strict=True)
        )
        if not rows:
            raise ValueError("it has no rows")
        return ComparisonFacts(
            metric=str(stored["metric"]),
            equal=str(stored["equal"]),
            data=dict(stored.get("data", {})),
            seeds=tuple(int(seed) for seed in stored["seeds"]),
            rows=rows,
            paired=tuple(
                PairedFacts(str(p["against"]), _number(p["mean"]), _number(p.get("ci95")))
                for p in stored.get("paired", [])
            ),
            missing_runs=tuple(run for runs in named for run in runs if run not in found),
        )


def _row(row: Mapping[str, Any], runs: tuple[RunFacts, ...]) -> RowFacts:
    return RowFacts(
        label=str(row["label"]),
        steps=str(row.get("steps", "")),  # older ones do not say
        rounds=int(row["rounds"]),
        adaptation_steps=int(row["adaptation_steps"]),
        values=tuple(float(value) for value in row["values"] if is_number(value)),
        mean=_number(row["mean"]),
        ci95=_number(row.get("ci95")),
        before_mean=_number(row.get("before_mean")),
        n=int(row["n"]),
        diverged=int(row.get("diverged", 0)),
        gradient_evaluations=_number(row.get("gradient_evaluations")),
        bytes_per_node=_number(row.get("bytes_per_node")),
        seconds=_number(row.get("seconds")),
        runs=runs,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
