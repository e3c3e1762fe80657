"""The charts of a diagnosis: the Lagrangian, norms, the rate, penalties and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedmeta.report import format as fmt
from fedmeta.report.charts import Line, end_labels, line_chart, value_axis
from fedmeta.report.picture import Picture, draw
from fedmeta.report.style import WIDE, colour, series_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Any]


def values(found: Found) -> Picture | None:
    """𝓛 and F along the run."""
    both = bool(_series(found, "lagrangian")[0])
    caption = "Augmented Lagrangian 𝓛 and meta-objective F" if both else "F(θ)"
    keys = {"𝓛": "lagrangian", "F(θ)": "objective"}
    return _lines(found, keys, name="values", caption=caption, log=False)


def norms(found: Found) -> Picture | None:
    """‖∇F‖ and both residuals along the run."""
    keys = {"‖∇F‖": "gradient_norm", "primal": "primal", "dual": "dual"}
    caption = "Exact gradient norm and residuals (logarithmic axis)"
    return _lines(found, keys, name="norms", caption=caption, log=True)


def rate(found: Found) -> Picture | None:
    """The smallest ‖∇F‖² so far, with the theorem's slope beside it, on logarithmic axes."""
    rounds, norms = _series(found, "gradient_norm")
    if len(rounds) < 3 or min(norms) <= 0:
        return None
    least = [min(norms[: place + 1]) ** 2 for place in range(len(norms))]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.plot(rounds, [least[0] * rounds[0] / t for t in rounds], "--", color=colour("muted"))
        axes.plot(rounds, least, color=colour("accent"))
        axes.set_xlabel("round")
        axes.xaxis.set_major_formatter(fmt.tick)
        axes.xaxis.set_minor_formatter(lambda *_: "")
        value_axis(axes)
        ends = [
            (least[0] * rounds[0] / rounds[-1], "1/t", colour("muted")),
            (least[-1], "min ‖∇F‖²", colour("accent")),
        ]
        axes.set_xlim(rounds[0], rounds[-1])
        end_labels(axes, ends, 200)

    slope = fmt.number(found["slope"])
    return draw(
        paint,
        name="rate",
        label=f"Smallest squared gradient norm so far against rounds, slope {slope}.",
        caption=f"Smallest ‖∇F‖² so far: log-log slope {slope}; the theorem promises at most −1 in "
        "the long run",
    )


def penalties(found: Found) -> Picture | None:
    """ρ_i of every node against the smallest that the theorem allows, sorted by it."""
    nodes = [node for node in found["nodes"] if node["least_derived"] and node["least_printed"]]
    nodes.sort(key=lambda node: node["least_derived"])
    if not nodes:
        return None
    series = {
        "ρ used": ("penalty", "accent"),
        "derived": ("least_derived", "series-1"),
        "printed": ("least_printed", "before"),
    }

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_yscale("log")
        ends = []
        for name, (key, role) in series.items():
            heights = [node[key] for node in nodes]
            axes.plot(range(len(nodes)), heights, "o", markersize=4, color=colour(role))
            ends.append((heights[-1], name, colour(role)))
        axes.set_xticks([])
        axes.set_xlabel("source nodes, sorted")
        value_axis(axes)
        end_labels(axes, ends, 200)

    return draw(
        paint,
        name="penalties",
        label="Penalties of the source nodes and the smallest that the theorem allows.",
        caption="ρ of every source, and the smallest that the theorem allows, as derived and as "
        "printed (logarithmic axis)",
    )


def bounds(found: Found) -> Picture | None:
    """Left sides that were measured against right sides, as derived and as printed."""
    rows: dict[str, dict[str, float]] = {}
    for bound in found["bounds"]:
        row = rows.setdefault(bound["name"], {})
        for key, number in (
            ("measured", bound["left"]),
            ("printed" if bound["printed"] else "derived", bound["right"]),
        ):
            if number:
                row[key] = number
    rows = {name: row for name, row in rows.items() if row}
    if not rows:
        return None
    roles = {"measured": "accent", "derived": "series-1", "printed": "before"}

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        for place, row in enumerate(rows.values()):
            axes.plot([min(row.values()), max(row.values())], [-place] * 2, color=colour("rule"))
            for key, number in row.items():
                shape = "o" if key == "measured" else "|"
                axes.plot(
                    number,
                    -place,
                    shape,
                    color=colour(roles[key]),
                    markersize=8 if shape == "o" else 16,
                    markeredgewidth=3,
                )
        axes.set_yticks(range(0, -len(rows), -1), list(rows), color=colour("ink"))
        axes.set_ylim(0.6 - len(rows), 0.5)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.xaxis.set_major_formatter(fmt.tick)
        axes.xaxis.set_minor_formatter(lambda *_: "")

    return draw(
        paint,
        name="bounds",
        label="Measured quantities and what theory bounds them by.",
        caption="The dot was measured; strokes are the bounds, orange as derived, grey as printed "
        "(logarithmic axis)",
        size=(WIDE, 60 + 32 * len(rows)),
    )


def _series(found: Found, key: str, positive: bool = False) -> tuple[list[float], list[float]]:
    pairs = [(each["round"], each[key]) for each in found["along"] if each[key] is not None]
    pairs = [(x, y) for x, y in pairs if y > 0 or not positive]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _lines(
    found: Found, keys: Mapping[str, str], *, name: str, caption: str, log: bool
) -> Picture | None:
    """Lines against rounds, named at their ends; None if there is nothing to draw."""
    lines: list[Line] = []
    for title, key in keys.items():
        xs, ys = _series(found, key, positive=log)
        if xs:
            style = ("-", "--", ":")[len(lines)]
            lines.append(Line(title, xs, ys, series_colour(len(lines)), style=style))
    if not lines:
        return None

    def plot(axes: Axes, line: Line) -> None:
        axes.plot(line.xs, line.ys, line.style, color=line.tint)

    last = fmt.listed([f"{line.name} {fmt.number(line.ys[-1])}" for line in lines])
    label = f"{caption}. At the end: {last}."
    return line_chart(lines, name=name, label=label, caption=caption, log=log, plot=plot)
