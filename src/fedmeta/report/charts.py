"""What several charts have in common: ticks, limits, rows with names, lines named at their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmeta.report import format as fmt
from fedmeta.report.picture import Picture, draw
from fedmeta.report.style import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHED = (0, (4, 2))
Ticks = Callable[[float, float], str]
"""How the ticks of an axis are written, from value and position."""


class Line(NamedTuple):
    """A line of a chart.

    Args:
        name: what stands at its end.
        xs, ys: its points.
        tint: colour.
        width: of the stroke.
        style: of the stroke, as matplotlib has it.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    tint: str
    width: float = 2
    style: Any = "-"


def plot_line(axes: Axes, line: Line) -> None:
    """Draw a line with a dot at its end, thinned to some hundred points."""
    xs, ys = line.xs, line.ys
    stride = 1 + len(xs) // 500
    keep = sorted({*range(0, len(xs), stride), len(xs) - 1})
    # Spelt out: a lone point would be invisible as a line.
    axes.plot(
        [xs[i] for i in keep],
        [ys[i] for i in keep],
        color=line.tint,
        linewidth=line.width,
        linestyle=line.style,
        marker="o" if len(xs) == 1 else None,
        clip_on=False,
    )
    axes.plot(xs[-1:], ys[-1:], "o", color=line.tint, markersize=5, clip_on=False)


def line_chart(
    lines: Sequence[Line],
    *,
    name: str,
    label: str,
    caption: str,
    log: bool = False,
    ticks: Ticks = fmt.tick,
    plot: Callable[[Axes, Line], None] = plot_line,
) -> Picture:
    """A small chart of lines against rounds.

    Args:
        lines: at least one.
        name, label, caption: see `draw`.
        log: whether the y axis is logarithmic.
        ticks: how its ticks are written.
        plot: draws one line.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        if log:
            axes.set_yscale("log")
        for line in lines:
            plot(axes, line)
        rounds_axis(axes, int(max(line.xs[-1] for line in lines)))
        low, high = axes.get_ylim()
        if log and high < 100 * low:  # at least a decade, so that there are two labels to read
            middle = (low * high) ** 0.5
            axes.set_ylim(min(low, middle / 10), max(high, middle * 10))
        value_axis(axes, ticks)
        end_labels(axes, [(line.ys[-1], line.name, line.tint) for line in lines], 200)

    return draw(paint, name=name, label=label, caption=caption)


def end_labels(
    axes: Axes, ends: Sequence[tuple[float, str, str]], height: float, size: float = 11
) -> None:
    """Name lines at their right ends, moved apart where they would overlap.

    Args:
        axes: with its limits set for good.
        ends: height in data units, text and colour of each.
        height: of the axes in CSS pixels, roughly.
        size: of the font.
    """
    to_fraction = axes.transScale + axes.transLimits
    x = axes.get_xlim()[1]
    heights = [float(to_fraction.transform((x, y))[1]) for y, _, _ in ends]
    for place, (_, text, tint) in zip(_apart(heights, 1.2 * size / height), ends, strict=True):
        axes.text(
            1.02, place, text, color=tint, va="center", transform=axes.transAxes, fontsize=size
        )


def rounds_axis(axes: Axes, last: int, label: str = "round") -> None:
    """An x axis that counts rounds, or what they cost."""
    axes.set_xlim(0, max(last, 1))
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.xaxis.set_major_formatter(fmt.tick)
    axes.set_xlabel(label)


def value_axis(axes: Axes, formatter: Ticks = fmt.tick) -> None:
    """A y axis with few lines."""
    if axes.get_yscale() == "linear":
        axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(formatter)
    axes.yaxis.set_minor_formatter(lambda *_: "")


def metric_ticks(metric: str) -> Ticks:
    """How the ticks of a metric's axis are written."""
    if metric == "accuracy":
        return lambda value, _: f"{fmt.tick(round(100 * value, 6))} %"
    return fmt.tick


def metric_axis(axes: Axes, metric: str, values: Sequence[float]) -> None:
    """The x axis of a metric, with room around what is shown."""
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.05 * max(abs(high), 0.1)
    # No accuracy is above 100 %, and no error below 0; half a marker may be.
    high = min(high + pad, 1.01) if metric == "accuracy" else high + pad
    axes.set_xlim(max(low - pad, -0.01 * high), high)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(metric_ticks(metric))


def named_rows(axes: Axes, names: Sequence[str], margin: float = 0.3) -> None:
    """A y axis with a name for each of the rows n, …, 1, and lines along the x axis alone.

    Args:
        axes: with rows at whole numbers.
        names: from top to bottom.
        margin: where the axis begins.
    """
    axes.set_yticks(range(len(names), 0, -1), names, color=colour("ink"))
    axes.set_ylim(margin, len(names) + 1 - margin)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Places between 0 and 1 moved as little as needed to lie `gap` apart."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    ceiling = 1.0
    for each in reversed(order):
        moved[each] = min(moved[each], ceiling)
        ceiling = moved[each] - gap
    return moved
