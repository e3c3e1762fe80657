"""What the figures of the page of results share; SVG files that repeat to the byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.experiment import Plot, Summary
from experiments.names import OURS, PARTITIONS
from experiments.statistics import Entry
from fedmeta.core.storage import write_bytes, writing
from fedmeta.report.format import tick
from fedmeta.report.style import FILE, require_matplotlib, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_STYLE = {
    **FILE,
    "axes.axisbelow": True,
    "axes.edgecolor": "#b9bec6",
    "axes.labelcolor": "#55595f",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "lines.linewidth": 1.8,
    "xtick.color": "#55595f",
    "ytick.color": "#55595f",
}
COLOURS = {"fedavg": "#c8540a", "per-fedavg": "#00805d", OURS: "#0a66a8"}
INK = "#202327"


def draw(figures: Mapping[str, Plot], summary: Summary, folder: Path) -> list[Path]:
    """Draw every figure there are numbers for, each with their fingerprint.

    Args:
        figures: by the name of the experiment whose numbers they show.
        summary: of all results.
        folder: for the files.

    Returns:
        The files.
    """
    require_matplotlib()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in figures.items():
        if not summary[name]:
            continue
        document = svg(
            lambda figure, plot=plot: plot(figure, summary),  # type: ignore[misc]
            _STYLE,
            Description=fingerprint(name, summary),
        )
        write_bytes(folder / f"{name}.svg", document)
        written.append(folder / f"{name}.svg")
    return written


def fingerprint(name: str, summary: Summary) -> str:
    """Of the numbers behind a figure; it is written into the figure's file.

    Example:
        >>> fingerprint("rho", {"rho": {}}) == fingerprint("rho", {"rho": {}, "prior": {}})
        True
    """
    text = json.dumps(summary[name], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def panels(figure: Figure, rows: int, columns: int, size: tuple[float, float]) -> list[Axes]:
    """A grid of axes, row by row; `size` is that of one, in inches."""
    figure.set_size_inches(size[0] * columns, size[1] * rows + 0.5)
    return list(figure.subplots(rows, columns, squeeze=False).flat)


def panels_by_partition(
    figure: Figure, data: Sequence[str], size: tuple[float, float]
) -> list[tuple[Axes, str, str, bool]]:
    """A row of axes per partition, a column per data set.

    Returns:
        Axes, partition, data set, and whether they are the first of their row.
    """
    places = [(partition, name, name == data[0]) for partition in PARTITIONS for name in data]
    axes = panels(figure, len(PARTITIONS), len(data), size)
    return [(each, *place) for each, place in zip(axes, places, strict=True)]


def legend(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend above all axes."""
    handles = {
        label: handle
        for each in axes
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=min(columns, len(handles)),
        )


def mark_mean(
    axes: Axes, entry: Entry | None, y: float, colour: str, mark: str, label: str
) -> None:
    """A mean with its interval (a dot), or the mean alone."""
    if entry is None or entry["mean"] is None:
        return
    width = entry["ci95"] or 0.0
    shown: dict[str, Any] = {
        "color": colour,
        "markersize": 4.5 if mark == "o" else 8,
        "linewidth": 1.2,
    }
    if mark == "o":
        axes.errorbar(entry["mean"], y, xerr=width, fmt=mark, label=label, **shown)
    else:
        axes.plot(entry["mean"], y, mark, label=label, **shown)


def line(
    axes: Axes, xs: Sequence[float], entries: Sequence[Entry | None], colour: str, label: str
) -> None:
    """Means with their intervals as a band."""
    known = [(x, e) for x, e in zip(xs, entries, strict=True) if e and e["mean"] is not None]
    if not known:
        return
    places = [x for x, _ in known]
    means = [e["mean"] for _, e in known]
    widths = [e["ci95"] or 0.0 for _, e in known]
    axes.plot(places, means, "o-", color=colour, markersize=4, label=label)
    low = [mean - width for mean, width in zip(means, widths, strict=True)]
    high = [mean + width for mean, width in zip(means, widths, strict=True)]
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis with numbers that people read, as many as fit."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(tick)
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5) if high < 20 * low else (2, 5)))
    axes.yaxis.set_minor_formatter(tick if high < 1000 * low else NullFormatter())
    axes.tick_params(axis="y", which="both", labelsize=8)
