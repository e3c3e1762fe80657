"""What commands print: tables and progress, with rich where it is installed, plainly elsewhere."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedmeta.core.errors import MissingExtraError
from fedmeta.core.metrics import METRICS
from fedmeta.core.printable import printable
from fedmeta.core.run_folder import Record
from fedmeta.core.storage import write_json, writing
from fedmeta.training.callbacks import Callback
from fedmeta.training.progress import status


def say(text: str = "") -> None:
    """A line of ordinary output, as `printable`."""
    print(printable(text), flush=True)  # whoever reads a log wants it now


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A small table; the first column is text, the others are numbers."""
    if find_spec("rich") is None:
        say(title)
        say(plain_table(columns, rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(header_style="dim")
    for place, column in enumerate(columns):
        grid.add_column(column, justify="left" if place == 0 else "right", no_wrap=place == 0)
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))  # no markup: names are of others
    # A file or pipe has no width to squeeze the table into.
    console = Console() if sys.stdout.isatty() else Console(width=200, soft_wrap=True)
    with console.capture() as drawn:
        console.print(Text(printable(title), style="bold"))
        console.print(grid)
    print(drawn.get(), end="", flush=True)  # rich itself would end the program if nobody reads on


@contextmanager
def advising(advice: Callable[[], str]) -> Iterator[None]:
    """Tell somebody who interrupts what follows how to go on.

    Args:
        advice: asked for when it happens.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(advice()) from error


def continued_by(command: str, folder: Path, begun: str) -> str:
    """The advice for a folder that can be gone on with once a file of it is there.

    Example:
        >>> continued_by("train", Path("runs/none"), "settings.json")
        'nothing was written yet'
    """
    if not (folder / begun).is_file():
        return "nothing was written yet"
    return f"continue with fedmeta {command} --resume {shlex.quote(str(folder))}"


def write_result(path: Path, value: object) -> None:
    """Write JSON for the user, the folder too where it is missing, and say so.

    A link that the user has named stays one.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path.resolve(), value)
    say(f"written to {path}")


def results_folder(out: str | None, name: str) -> Path:
    """Where --out says, else a folder that is not there yet: runs/name, runs/name-2, …"""
    if out:
        return Path(out)
    number, path = 2, Path("runs", name)
    while path.exists():
        path, number = Path("runs", f"{name}-{number}"), number + 1
    return path


def print_report(folder: Path) -> None:
    """Write the report and say where it is, or which extra is missing."""
    from fedmeta.report import write_report

    say(f"run      {folder}")
    try:
        say(f"report   {write_report(folder)}")
    except MissingExtraError as error:
        say(f"report   not written: {error}")


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in spaces.

    Example:
        >>> print(plain_table(["name", "value"], [["a", "1.5"]]))
        name  value
        a       1.5
    """
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def percent(metric: str, value: float | None) -> str:
    """A metric for people: accuracies in percent, errors as numbers.

    Example:
        >>> percent("accuracy", 0.891), percent("mse", 0.0123)
        ('89.1 %', '0.0123')
    """
    if value is None:
        return "–"
    share = metric in METRICS and METRICS[metric].share
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"


def known(value: float | None) -> float | None:
    """A number; None where it is none or not finite."""
    return value if value is not None and math.isfinite(value) else None


def own_mean_lines(
    target_metric: Mapping[str, Mapping[str, float | None]],
    own_mean: Mapping[str, float],
    steps: int,
) -> list[str]:
    """What a regression is held against, and a note where the adapted model is worse.

    Args:
        target_metric: statistics of the targets by number of steps, as in summary.json.
        own_mean: the same of predicting each device's own mean; empty for classification.
        steps: after how many the model counts as adapted.

    Example:
        >>> for line in own_mean_lines({"1": {"mean": 71.7}}, {"mean": 57.5}, 1):
        ...     print(line)
        each device's own mean: 57.5
        note: after 1 step the model is worse than the mean of a device's own labels
    """
    if not own_mean:
        return []
    lines = [f"each device's own mean: {own_mean['mean']:.4g}"]
    reached = target_metric.get(str(steps), {}).get("mean")
    if reached is not None and reached > own_mean["mean"]:
        s = "s" * (steps != 1)
        lines.append(
            f"note: after {steps} step{s} the model is worse than the mean of a device's own labels"
        )
    return lines


def print_metrics(
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]],
    baseline: Mapping[str, Any],
    classes: Sequence[Mapping[str, Any]],
    steps: int,
) -> None:
    """All metrics after adaptation beside what nothing has to be learned for, and every class.

    Args:
        metrics: as of `Evaluation.metrics`.
        baseline: of every metric.
        classes: as of `class_table`; tables of more than 12 are left to summary.json.
        steps: after how many the model counts as adapted.
    """
    rows = [
        [name, percent(name, row[str(steps)]["mean"]), percent(name, baseline.get(name))]
        for name, row in metrics.items()
        if str(steps) in row
    ]
    if not rows:
        return
    s = "s" * (steps != 1)
    table(f"Means over nodes after {steps} step{s}", ["metric", "model", "baseline"], rows)
    if baseline:
        say(f"baseline: {baseline['of']}")
    if 0 < len(classes) <= 12:
        keys = ("recall", "precision", "f1", "auc")
        lines = [
            [str(row["name"]), str(row["samples"]), *(percent("f1", row[key]) for key in keys)]
            for row in classes
        ]
        table("Classes over all samples of these nodes", ["class", "samples", *keys], lines)


@contextmanager
def progress_bars() -> Iterator[Any]:
    """A factory (label → callback) of progress bars that live as long as the context."""
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield PlainProgress
        return
    from rich import progress
    from rich.console import Console
    from rich.markup import escape

    with progress.Progress(
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[status]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bars:
        yield lambda label: RichProgress(bars, escape(printable(label)))


class PlainProgress(Callback):
    """A line now and then on standard error."""

    def __init__(self, label: str) -> None:
        self._label, self._last, self._rounds = label, 0.0, 0

    def on_start(self, first_round: int, rounds: int) -> None:
        """Remember how many rounds there are."""
        self._rounds = rounds

    def on_round(self, record: Record) -> None:
        """At most a line every two seconds, and the last one."""
        number = record["round"]
        if time.monotonic() - self._last > 2 or number == self._rounds:
            self._last = time.monotonic()
            line = f"{self._label}: round {number}/{self._rounds}  {status(record)}"
            print(printable(line), file=sys.stderr, flush=True)


class RichProgress(Callback):
    """A progress bar with the latest loss and target metric."""

    def __init__(self, bars: Any, label: str) -> None:
        self._bars, self._label, self._shown = bars, label, ""
        self._task: Any = None

    def on_start(self, first_round: int, rounds: int) -> None:
        """Put the bar up."""
        self._task = self._bars.add_task(
            self._label, total=rounds, completed=first_round - 1, status=""
        )

    def on_round(self, record: Record) -> None:
        """Move it on."""
        if "target" in record or not self._shown:
            self._shown = status(record)
        self._bars.update(self._task, completed=record["round"], status=self._shown)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Leave it as it is: the bars stay on screen."""
