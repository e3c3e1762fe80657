"""What commands print: tables and progress, with rich where it is installed, plainly elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedmeta.config.training import loss_of
from fedmeta.core.errors import MissingExtraError
from fedmeta.core.run_folder import Record
from fedmeta.core.storage import write_json, writing
from fedmeta.training.callbacks import Callback


def say(text: str = "") -> None:
    """A line of ordinary output."""
    print(text, flush=True)  # whoever reads a log wants it now


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
        grid.add_row(*row)
    # A file or pipe has no width to squeeze the table into.
    console = Console() if sys.stdout.isatty() else Console(width=200, soft_wrap=True)
    console.print(Text(title, style="bold"))
    console.print(grid)


def write_result(path: Path, value: object) -> None:
    """Write JSON for the user, the folder too where it is missing, and say so."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)
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
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def plus_minus(metric: str, mean: float, half_width: float | None) -> str:
    """Mean ± half width of the 95 % interval, for people."""
    if half_width is None:
        return percent(metric, mean)
    if metric == "accuracy":
        return f"{100 * mean:.1f} ± {100 * half_width:.1f} %"
    return f"{mean:.4g} ± {half_width:.2g}"


@contextmanager
def progress_bars() -> Iterator[Any]:
    """A factory (label → callback) of progress bars that live as long as the context."""
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield PlainProgress
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[status]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bars:
        yield lambda label: RichProgress(bars, label)


def status(record: Record) -> str:
    """The latest numbers of a round, short.

    Example:
        >>> status({"round": 3, "meta_loss": 0.51234, "target": {"0": 0.5, "1": 0.75}})
        'loss 0.5123  adapted 0.75'
    """
    loss = loss_of(record)
    parts = [] if loss is None else [f"loss {loss:.4g}"]
    target = record.get("target") or {"1": None}
    reached = target.get("1", next(iter(target.values())))
    if reached is not None:
        parts.append(f"adapted {reached:.3g}")
    return "  ".join(parts)


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
            print(line, file=sys.stderr, flush=True)


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
