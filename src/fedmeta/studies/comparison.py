"""What a comparison found, and how people see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmeta.core.metrics import METRICS
from fedmeta.core.notebook import as_frame, rows_table
from fedmeta.evaluation.intervals import FEWEST
from fedmeta.studies.fair_steps import unfair_note


class Comparison(dict[str, Any]):
    """What `compare` returns: the same as comparison.json, with a table for people.

    Example:
        >>> row = {"label": "fedavg", "steps": "given", "mean": 0.9, "before_mean": 0.5}
        >>> found = {"metric": "accuracy", "seeds": [0], "rows": [{**row, "ci95": None}]}
        >>> print(Comparison({**found, "paired": []}))
        accuracy of the target nodes, 1 seed
        algorithm  before  adapted  first minus this  step sizes
        fedavg     50.0 %   90.0 %                         given
        note: with fewer than 3 seeds there is no interval, and none is called the best
    """

    COLUMNS = ("algorithm", "before", "adapted", "first minus this", "step sizes")

    @property
    def title(self) -> str:
        """What the figures are."""
        seeds = len(self["seeds"])
        over = f"mean ± 95 % interval over {seeds} seeds" if seeds >= FEWEST else _seeds(seeds)
        return f"{self.metric} of the target nodes, {over}"

    @property
    def metric(self) -> str:
        """The one that the table shows."""
        return str(self.get("shown", self["metric"]))

    def by_metric(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a row, or a paired difference, says of that metric."""
        found: Mapping[str, Any] = entry.get("metrics", {}).get(self.metric, {})
        return entry if self.metric == self["metric"] or not found else found

    @property
    def notes(self) -> list[str]:
        """What to know before anything is concluded."""
        unfair = unfair_note({row["label"]: row.get("steps", "") for row in self["rows"]})
        notes = [] if unfair is None else [unfair]
        if len(self["seeds"]) < FEWEST:
            few = f"with fewer than {FEWEST} seeds there is no interval"
            notes.append(f"{few}, and none is called the best")
        return notes

    def cells(self) -> list[list[str]]:
        """The rows of the table, one per algorithm, in the order of `COLUMNS`."""
        metric = self.metric
        less = {each["against"]: self.by_metric(each) for each in self["paired"]}
        return [
            [
                row["label"],
                reached(metric, self.by_metric(row)["before_mean"], None),
                reached(metric, self.by_metric(row)["mean"], self.by_metric(row)["ci95"]),
                difference(metric, less.get(row["label"])),
                row.get("steps", ""),
            ]
            for row in self["rows"]
        ]

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame, numbers as they are, with the mean of every metric."""
        kept = ("label", "steps", "rounds", "before_mean", "mean", "ci95", "diverged", "seconds")
        return as_frame(
            [
                {
                    **{name: {**row, **self.by_metric(row)}.get(name) for name in kept},
                    **{name: each["mean"] for name, each in row.get("metrics", {}).items()},
                }
                for row in self["rows"]
            ]
        )

    def __repr__(self) -> str:
        """The table in plain text."""
        lines = [list(self.COLUMNS), *self.cells()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.COLUMNS))]
        table = "\n".join(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
        return "\n".join([self.title, table, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>Note: {note}.</p>" for note in self.notes)
        return rows_table(self.title, self.COLUMNS, self.cells()) + notes


def reached(metric: str, mean: float | None, half_width: float | None) -> str:
    """A mean metric ± half width of the 95 % interval, for people.

    Example:
        >>> reached("accuracy", 0.891, 0.0123), reached("mse", 0.0123, None)
        ('89.1 ± 1.2 %', '0.0123')
    """
    if mean is None:
        return "–"
    if metric in METRICS and METRICS[metric].share:
        width = "" if half_width is None else f" ± {100 * half_width:.1f}"
        return f"{100 * mean:.1f}{width} %"
    return f"{mean:.4g}" + ("" if half_width is None else f" ± {half_width:.2g}")


def difference(metric: str, less: Mapping[str, Any] | None) -> str:
    """A paired difference, for people: accuracies differ by percentage points.

    Example:
        >>> difference("accuracy", {"mean": 0.013, "ci95": 0.027}), difference("mse", None)
        ('+1.3 ± 2.7 points', '')
    """
    if less is None:
        return ""
    mean, width = less["mean"], less["ci95"]
    if mean is None:
        return "–"
    if metric in METRICS and METRICS[metric].share:
        return f"{100 * mean:+.1f}{'' if width is None else f' ± {100 * width:.1f}'} points"
    return f"{mean:+.3g}{'' if width is None else f' ± {width:.2g}'}"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
