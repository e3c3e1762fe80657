"""The charts of a run: along its rounds, and what adapting does to each new device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmeta.report import format as fmt
from fedmeta.report.charts import (
    DASHED,
    Line,
    line_chart,
    metric_axis,
    metric_ticks,
    named_rows,
    plot_line,
    rounds_axis,
    value_axis,
)
from fedmeta.report.picture import Picture, draw
from fedmeta.report.reading import RunFacts
from fedmeta.report.style import SMALL, WIDE, colour, series_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DUMBBELLS = 40
# Key, name and width. The gradient goes below: the dual residual often lies right on top of it.
_NORMS = (
    ("gradient_norm", "gradient", 4.5),
    ("primal_residual", "primal", 2),
    ("dual_residual", "dual", 1.6),
    ("step_norm", "step", 2),
)


def loss_curve(run: RunFacts) -> Picture | None:
    """Training loss against rounds; None if no round logged one."""
    name = "meta-loss" if run.loss_key == "meta_loss" else "local loss"
    xs, ys = run.series(run.loss_key)
    if not xs:
        return None

    def plot(axes: Axes, line: Line) -> None:
        if min(ys) > 0 and max(ys) > 50 * min(ys):
            axes.set_yscale("log")
        plot_line(axes, line)

    return line_chart(
        [Line(fmt.number(ys[-1]), xs, ys, colour("accent"))],
        name="loss",
        label=f"Line chart of the {name} on the source devices: {fmt.number(ys[0])} in round "
        f"{xs[0]}, {fmt.number(ys[-1])} in round {xs[-1]}.",
        caption=f"{name.capitalize()} on the source devices",
        plot=plot,
    )


def target_curve(run: RunFacts) -> Picture | None:
    """Mean metric of the targets against rounds, by adaptation steps; None without evaluations."""
    others = iter(("series-3", "series-2", "series-4", "series-5", "series-6"))
    lines, parts = [], []
    for steps in run.evaluated_steps:
        xs, ys = run.target_series(steps)
        if not xs:
            continue
        chosen, count = steps == run.adaptation_steps, fmt.counted(steps, "step")
        role = "accent" if chosen else "before" if steps == 0 else next(others, "muted")
        style = DASHED if steps == 0 else "-"
        lines.append(Line(count, xs, ys, colour(role), 2.4 if chosen else 1.6, style))
        parts.append(f"{fmt.metric(ys[-1], run.metric)} after {count}")
    if not lines:
        return None
    name = fmt.mean_name(run.metric)
    return line_chart(
        lines,
        name="targets-by-round",
        label=f"Line chart of the {name} of the new devices against rounds. "
        f"At the end: {fmt.listed(parts)}.",
        caption=f"{name.capitalize()} of the new devices, by adaptation steps",
        ticks=metric_ticks(run.metric),
    )


def norms(run: RunFacts) -> Picture | None:
    """Residuals and gradient norm against rounds, on a logarithmic axis."""
    lines: list[Line] = []
    for key, name, width in _NORMS:
        pairs = [(x, y) for x, y in zip(*run.series(key), strict=True) if y > 0]
        if pairs:
            xs, ys = zip(*pairs, strict=True)
            style = DASHED if name == "primal" else "-"
            lines.append(Line(name, xs, ys, series_colour(len(lines)), width, style))
    if not lines:
        return None
    parts = [f"{line.name} {fmt.number(line.ys[-1])}" for line in lines]
    residuals = {"primal", "dual"} & {line.name for line in lines}
    what = "Residuals and norms" if residuals else "Norms"
    return line_chart(
        lines,
        name="norms",
        label=f"{what} against rounds on a logarithmic axis. At the end: {fmt.listed(parts)}.",
        caption=f"{what} (logarithmic axis)",
        log=True,
    )


def timing(run: RunFacts) -> Picture | None:
    """Seconds of each round."""
    xs, ys = run.series("seconds")
    if not xs or max(ys) <= 0:
        return None
    scale, unit = (1000, "ms") if max(ys) < 1 else (1, "s")
    longer = "; rounds that evaluate the new devices take longer" if run.evaluated_steps else ""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        plot_line(axes, Line("", xs, [scale * y for y in ys], colour("accent"), width=1.4))
        axes.set_ylim(bottom=0)
        rounds_axis(axes, xs[-1])
        value_axis(axes, lambda value, _: f"{fmt.tick(value)} {unit}")

    return draw(
        paint,
        name="timing",
        label=f"Line chart of the time of each round: {fmt.duration(min(ys))} to "
        f"{fmt.duration(max(ys))}.",
        caption=f"Time of each round{longer}",
        size=(SMALL[0], 180),
    )


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
    for place, (_, before, after) in zip(range(len(rows), 0, -1), rows, strict=True):
        tint = colour("worse" if run.outcome(before, after) == "worse" else "accent")
        axes.plot([before, after], [place, place], color=tint, linewidth=3, alpha=0.45, zorder=1)
        axes.plot(
            before,
            place,
            "o",
            ms=9,
            mfc=colour("page"),
            mec=colour("before"),
            mew=1.8,
            clip_on=False,
        )
        axes.plot([after], [place], "o", markersize=6, color=tint, zorder=3, clip_on=False)
    named_rows(axes, [fmt.shortened(name, 22) for name, _, _ in rows], margin=0.4)
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
