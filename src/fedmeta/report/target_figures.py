"""The chart of what adapting does to each new device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmeta.report import format as fmt
from fedmeta.report.axes import metric_axis, metric_ticks, named_rows
from fedmeta.report.picture import Picture, draw
from fedmeta.report.reading import RunFacts
from fedmeta.report.style import WIDE, colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_DUMBBELLS = 40


def targets_before_and_after(run: RunFacts) -> Picture | None:
    """Every target before and after adapting: dumbbells, or points against a diagonal if many."""
    after, before = run.adaptation_steps, 0
    rows = [
        (target.name, target.metric[before], target.metric[after])
        for target in run.targets
        if before in target.metric and after in target.metric
    ]
    if not rows or before == after:
        return None
    name = fmt.metric_name(run.metric)
    steps = fmt.counted(after, "step", letters=True)
    counts = fmt.listed([f"{n} {how}" for how, n in run.outcomes().items()])
    best_first = sorted(rows, key=lambda row: (row[2], row[1]), reverse=run.metric == "accuracy")
    many = len(rows) > _MOST_DUMBBELLS
    paint = _scatter if many else _dumbbells
    return draw(
        lambda figure: paint(figure, run, best_first),
        name="scatter" if many else "dumbbells",
        label=f"{name.capitalize()} of each new device before and after {steps}: {counts}.",
        caption=f"{name.capitalize()} of each new device before adapting and after {steps}",
        size=(WIDE, 380 if many else 52 + 21 * len(rows)),
    )


def _dumbbells(figure: Figure, run: RunFacts, rows: Sequence[tuple[str, float, float]]) -> None:
    axes = figure.subplots()
    places = range(len(rows), 0, -1)
    for place, (_, before, after) in zip(places, rows, strict=True):
        tint = colour("worse" if run.outcome(before, after) == "worse" else "accent")
        axes.plot([before, after], [place, place], color=tint, linewidth=3, alpha=0.45, zorder=1)
        axes.plot(
            [before],
            [place],
            "o",
            markersize=9,
            markerfacecolor=colour("page"),
            markeredgecolor=colour("before"),
            markeredgewidth=1.8,
            clip_on=False,
        )
        axes.plot([after], [place], "o", markersize=6, color=tint, zorder=3, clip_on=False)
    labels = [fmt.shortened(name, 22) for name, _, _ in rows]
    named_rows(axes, labels, margin=0.4)
    metric_axis(axes, run.metric, [value for _, *pair in rows for value in pair])


def _scatter(figure: Figure, run: RunFacts, rows: Sequence[tuple[str, float, float]]) -> None:
    axes = figure.subplots()
    before, after = [row[1] for row in rows], [row[2] for row in rows]
    low, high = min(*before, *after), max(*before, *after)
    pad = 0.04 * (high - low) or 0.05
    axes.plot([low, high], [low, high], color=colour("muted"), linewidth=1, dashes=(3, 3))
    tints = [colour("worse" if run.outcome(b, a) == "worse" else "accent") for _, b, a in rows]
    axes.scatter(before, after, s=26, c=tints, alpha=0.55, linewidths=0)
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(low - pad, high + pad)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(metric_ticks(run.metric))
    axes.set_xlabel(f"{fmt.metric_name(run.metric)} before adapting")
    axes.set_ylabel("after")
    worse = "below" if run.metric == "accuracy" else "above"
    axes.set_title(f"{worse} the diagonal: worse after adapting", fontsize=11, loc="left")
