"""The plots: who takes how long, and how time grows with nodes and with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.problems import parameters
from benchmarks.results import Entry
from benchmarks.scaling_parameters import HESSIAN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "svg.hashsalt": "fedmeta",  # the same figures give the same file
}
_COLOURS = (
    "#0b6e99", "#c8553d", "#588157", "#7b4fa6", "#b8860b", "#555555", "#d16ba5", "#3fb8af",
)  # fmt: skip


def draw(entries: Sequence[Entry], folder: Path) -> list[str]:
    """Draw what there are entries for; returns the names of the files.

    Raises:
        ImportError: without matplotlib.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = []
    for name, (width, height), plot in (
        ("rounds", (8, 0.4 * len(_compared(entries)) + 1.4), _rounds),
        ("scaling_nodes", (7, 4), _nodes),
        ("scaling_parameters", (7, 4), _parameters),
    ):
        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=(width, height))
            if plot(figure.add_subplot(), entries):
                file = f"{name}.svg"
                figure.savefig(folder / file, metadata={"Date": None})
                drawn.append(file)
    return drawn


def _compared(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.name in ("rounds", "engines")]


def _rounds(axes: Axes, entries: Sequence[Entry]) -> bool:
    """Everyone's time over ours, a line per figure."""
    rows = _compared(entries)[::-1]
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
    axes.figure.legend(loc="outside upper center", ncols=3)
    return bool(rows)


def _label(row: Entry) -> str:
    where = row.machine.split(",")[0]
    return f"{row.name}: {row.network}, {row.nodes:,} nodes, {row.dtype}\n{where}"


def _nodes(axes: Axes, entries: Sequence[Entry]) -> bool:
    """Time of a round against the number of nodes, with a straight line beside each."""
    rows = [entry for entry in entries if entry.name == "scaling_nodes"]
    for machine, colour in zip(_machines(rows), cycle(_COLOURS), strict=False):
        mine = sorted((row for row in rows if row.machine == machine), key=lambda row: row.nodes)
        counts = [row.nodes for row in mine]
        axes.plot(counts, [row.median_ms for row in mine], "o-", color=colour, label=machine)
        last = mine[-1]
        line = [last.median_ms * count / last.nodes for count in counts]
        axes.plot(counts, line, ":", color=colour, label="proportional to nodes")
    _logarithmic(axes, "nodes")
    return bool(rows)


def _parameters(axes: Axes, entries: Sequence[Entry]) -> bool:
    """Time of a round against the number of parameters, ours and with an explicit Hessian."""
    rows = [entry for entry in entries if entry.name == "scaling_parameters"]
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
    return bool(rows)


def _machines(rows: Sequence[Entry]) -> list[str]:
    return sorted({row.machine for row in rows})


def _logarithmic(axes: Axes, what: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(what)
    axes.set_ylabel("ms per round")
    if axes.lines:
        axes.figure.legend(loc="outside upper left")
