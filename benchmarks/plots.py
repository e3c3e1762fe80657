"""The plots: who takes how long, and how time grows with nodes and with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.problems import parameters
from benchmarks.results import Entry
from benchmarks.scaling_parameters import HESSIAN
from fedmeta.report.style import FILE, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = {**FILE, "grid.color": "#e4e4e4"}
_COLOURS = (
    "#0b6e99", "#c8553d", "#588157", "#7b4fa6", "#b8860b", "#555555", "#d16ba5", "#3fb8af",
)  # fmt: skip


def draw(entries: Sequence[Entry], folder: Path) -> list[str]:
    """Draw what there are entries for; returns the names of the files.

    Raises:
        MissingExtraError: without matplotlib.
    """
    drawn = []
    for name, kinds, plot in (
        ("rounds", ("rounds", "engines"), _rounds),
        ("scaling_nodes", ("scaling_nodes",), _nodes),
        ("scaling_parameters", ("scaling_parameters",), _parameters),
    ):
        rows = [entry for entry in entries if entry.name in kinds]
        if rows:
            size = (8, 0.4 * len(rows) + 1.4) if plot is _rounds else (7, 4)
            file = f"{name}.svg"
            (folder / file).write_bytes(svg(partial(plot, rows), _STYLE, size))
            drawn.append(file)
    return drawn


def _rounds(rows: Sequence[Entry], figure: Figure) -> None:
    """Everyone's time over ours, a line per figure."""
    axes, rows = figure.add_subplot(), rows[::-1]
    peers = sorted({peer for row in rows for peer in row.peer_ms})
    for peer, colour in zip(peers, cycle(_COLOURS), strict=False):
        places = [place for place, row in enumerate(rows) if peer in row.peer_ms]
        ratios = [rows[place].ratio(peer) for place in places]
        axes.plot(ratios, places, "o", color=colour, label=peer)
    limits = [(row.limit_ms or 0.0) / row.median_ms for row in rows]
    axes.plot(limits, range(len(rows)), "|", color="black", markersize=11, label="arithmetic limit")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("time over ours (1 is fedmeta)")
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    figure.legend(loc="outside upper center", ncols=3)


def _label(row: Entry) -> str:
    where = row.machine.split(",")[0]
    return f"{row.name}: {row.network}, {row.nodes:,} nodes, {row.dtype}\n{where}"


def _nodes(rows: Sequence[Entry], figure: Figure) -> None:
    """Time of a round against the number of nodes, with a straight line beside each."""
    axes = figure.add_subplot()
    for machine, colour in zip(_machines(rows), cycle(_COLOURS), strict=False):
        mine = sorted((row for row in rows if row.machine == machine), key=lambda row: row.nodes)
        counts = [row.nodes for row in mine]
        axes.plot(counts, [row.median_ms for row in mine], "o-", color=colour, label=machine)
        last = mine[-1]
        line = [last.median_ms * count / last.nodes for count in counts]
        axes.plot(counts, line, ":", color=colour, label="proportional to nodes")
    _logarithmic(axes, "nodes")


def _parameters(rows: Sequence[Entry], figure: Figure) -> None:
    """Time of a round against the number of parameters, ours and with an explicit Hessian."""
    axes = figure.add_subplot()
    for machine, colour in zip(_machines(rows), cycle(_COLOURS), strict=False):
        mine = [row for row in rows if row.machine == machine]
        ours = sorted((parameters(row.network), row.median_ms) for row in mine)
        theirs = sorted(
            (parameters(row.network), row.peer_ms[HESSIAN])
            for row in mine
            if HESSIAN in row.peer_ms
        )
        axes.plot(*zip(*ours, strict=True), "o-", color=colour, label=f"ADMM-FedMeta, {machine}")
        if theirs:
            axes.plot(*zip(*theirs, strict=True), "s--", color=colour, label=HESSIAN)
    _logarithmic(axes, "parameters")


def _machines(rows: Sequence[Entry]) -> list[str]:
    return sorted({row.machine for row in rows})


def _logarithmic(axes: Axes, what: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(what)
    axes.set_ylabel("ms per round")
    axes.figure.legend(loc="outside upper left")
