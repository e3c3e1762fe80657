"""The page of a diagnosis, a run held against the theory, with its charts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from fedmeta.core.storage import seal_again, write_bytes
from fedmeta.report import format as fmt
from fedmeta.report.charts import Line, end_labels, line_chart, value_axis
from fedmeta.report.pages import render, require_extras
from fedmeta.report.picture import Picture, draw, present
from fedmeta.report.style import WIDE, colour, series_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
"""What diagnosis.json holds."""

SYMBOLS = {
    "smoothness": "μ",
    "gradient": "β",
    "hessian": "ζ",
    "nu_derived": "ν as derived",
    "nu_printed": "ν as printed",
    "gradient_deviation": "σᵍ",
    "hessian_deviation": "σʰ",
    "gradient_gap": "ψᵍ",
    "hessian_gap": "ψʰ",
    "penalty": "ρ",
    "least_derived": "smallest ρ as derived",
    "least_printed": "smallest ρ as printed",
}


def write_diagnosis(path: Path, found: Found, title: str) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        found: `Diagnosis.as_json()`, or what diagnosis.json holds.
        title: of the run.
    """
    require_extras()
    content = {
        "title": title,
        "headline": " ".join(found.get("plain", [])) or headline(found),
        "remarks": [
            f"{note[:1].upper()}{note[1:]}." for note in (headline(found), *found["notes"])
        ],
        "charts": present(
            values(found),
            norms(found),
            rate(found),
            penalties(found),
            bounds(found),
        ),
        "constants": constant_rows(found),
        "against": against(found),
        "found": found,
    }
    write_bytes(path, render("diagnosis.html", content).encode())
    seal_again(path)


def headline(found: Found) -> str:
    """The whole diagnosis in a sentence.

    Example:
        >>> seen = {"inside_the_theorem": True, "closed_form": False}
        >>> headline({**seen, "verdicts": [], "departures": []})
        'Nothing that was seen contradicts the theorem'
    """
    if found["inside_the_theorem"]:
        if found["closed_form"]:
            return "The run lies inside the theorem"
        return "Nothing that was seen contradicts the theorem"
    wrong = [v for v in found["verdicts"] if v["status"] == "violated" and not v["printed"]]
    small = [v["name"] for v in wrong if "ρ" in v["name"] or "a_p" in v["name"]]
    if small:
        return f"Outside the theorem: ρ is too small ({fmt.listed(small)})"
    if any(v["status"] == "not covered" for v in found["verdicts"]):
        return f"Not covered by the theorem: {found['departures'][0]}"
    return "Outside the theorem"


def against(found: Found) -> list[str]:
    """What stands between the run and the theorem besides ρ, a line each."""
    difference = found["difference"]
    lines = []
    if difference["summable"] is not True:
        known = "is not summable" if difference["summable"] is False else "may not be summable"
        lines.append(f"δ {known}: {difference['reason']}")
    for layer in found["layers"]:
        lines.append(f"layer {layer['name']!r} ({layer['kind']}) breaks the {layer['breaks']}")
    return [*lines, *found["departures"]]


def constant_rows(found: Found) -> list[list[str]]:
    """Symbol, median and largest over the sources, whose that is, and the target's."""
    rows = []
    for key, symbol in SYMBOLS.items():
        values = {n["name"]: n[key] for n in found["nodes"] if n[key] is not None}
        unbounded = len(values) < len(found["nodes"])
        own = (found["target"] or {}).get(key)
        where = max(values, key=lambda name: values[name]) if values and not unbounded else ""
        rows.append(
            [
                symbol,
                fmt.number(median(values.values())) if values else fmt.NO_VALUE,
                "∞" if unbounded else fmt.number(max(values.values())),
                where,
                fmt.NO_VALUE if own is None or key.endswith("gap") else fmt.number(own),
            ]
        )
    return rows


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
        form = "printed" if bound["printed"] else "derived"
        sides = {"measured": bound["left"], form: bound["right"]}
        row = rows.setdefault(bound["name"], {})
        row |= {key: number for key, number in sides.items() if number}
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
                shape, size = ("o", 8) if key == "measured" else ("|", 16)
                tint = colour(roles[key])
                axes.plot(number, -place, shape, color=tint, markersize=size, markeredgewidth=3)
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
