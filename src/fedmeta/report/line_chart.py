"""Lines against rounds, each named at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmeta.report import format as fmt
from fedmeta.report.axes import Ticks, at_least_a_decade, end_labels, rounds_axis, value_axis
from fedmeta.report.picture import Picture, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DASHED = (0, (4, 2))


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
        if log:
            at_least_a_decade(axes)
        value_axis(axes, ticks)
        end_labels(axes, [(line.ys[-1], line.name, line.tint) for line in lines], 200)

    return draw(paint, name=name, label=label, caption=caption)
