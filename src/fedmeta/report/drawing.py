"""Matplotlib figures as inline SVG that takes its colours and its font from the page.

A colour is drawn as a stand-in and replaced by a CSS variable afterwards, so one picture serves
light, dark and print. One unit of a figure is one CSS pixel at its natural width.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedmeta.core.errors import MissingExtraError
from fedmeta.report.format import tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ticks = Callable[[float, float], str]
"""How the ticks of an axis are written, from value and position."""

_ROLES = ("ink", "muted", "rule", "page", "accent", "before", "worse", "source", "target")
_SERIES = 8
_VARIABLES = [*_ROLES, *(f"series-{i}" for i in range(_SERIES))]
_STAND_INS = {name: f"#0a0b{number:02x}" for number, name in enumerate(_VARIABLES, start=0x10)}

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.edgecolor": _STAND_INS["rule"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": _STAND_INS["muted"],
    "axes.labelsize": 11,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.h_pad": 2 / 72,
    "figure.constrained_layout.w_pad": 2 / 72,
    "figure.dpi": 72,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 11,
    "grid.color": _STAND_INS["rule"],
    "grid.linewidth": 0.8,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmeta",
    "text.color": _STAND_INS["ink"],
    "text.parse_math": False,  # a node may be called "$x_1$"
    "xtick.color": _STAND_INS["muted"],
    "xtick.labelsize": 11,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": _STAND_INS["muted"],
    "ytick.labelsize": 11,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


@dataclass(frozen=True)
class Picture:
    """A figure for the page.

    Args:
        name: unique on the page.
        svg: its markup, safe to include.
        caption: one line below it.
        width: natural width in CSS pixels.
    """

    name: str
    svg: str
    caption: str
    width: int


def colour(role: str) -> str:
    """The stand-in of a CSS variable of the page."""
    return _STAND_INS[role]


def series_colour(number: int) -> str:
    """The stand-in of one of several series."""
    return _STAND_INS[f"series-{number % _SERIES}"]


def draw(
    paint: Callable[[Figure], None],
    *,
    name: str,
    label: str,
    caption: str,
    width: int,
    height: int,
) -> Picture:
    """Paint a figure and make it part of a page.

    Args:
        paint: draws on the empty figure it is given.
        name: unique on the page.
        label: what the picture shows, for those who cannot see it.
        caption: one line below it.
        width: in CSS pixels.
        height: in CSS pixels.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing")
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        paint(figure)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # the same bytes each time
        figure.savefig(buffer, format="svg", metadata=nothing)
    svg = _inline(buffer.getvalue(), name, label, width, height)
    return Picture(name, svg, caption, width)


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
    axes.xaxis.set_major_formatter(tick)
    axes.set_xlabel(label)


def value_axis(axes: Axes, formatter: Ticks = tick) -> None:
    """A y axis with few lines."""
    if axes.get_yscale() == "linear":
        axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(formatter)
    axes.yaxis.set_minor_formatter(lambda *_: "")


def thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most some hundred points of a line, the last among them."""
    stride = 1 + len(xs) // 500
    keep = sorted({*range(0, len(xs), stride), len(xs) - 1})
    return [xs[i] for i in keep], [ys[i] for i in keep]


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


def _inline(document: str, name: str, label: str, width: int, height: int) -> str:
    """An SVG document as an element of a page: no header, no global style, no clashing ids."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<svg[^>]*>", "", body, count=1)
    for junk in (
        r"<!--.*?-->",
        r"<metadata>.*?</metadata>",
        r"<defs>\s*<style.*?</style>\s*</defs>",
    ):
        body = re.sub(junk, "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    # Tags alone: what stands between them are names and numbers that must stay as they are.
    body = re.sub(r"<[^>]+>", lambda tag: _restyled(tag[0], name, used), body)
    body = re.sub(r">\s+<", "><", body).strip()
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" '
        f'style="max-width: {1.25 * width:.0f}px">{body}'
    )


def _restyled(tag: str, name: str, used: Collection[str]) -> str:
    """A tag with the page's colours and font, fewer decimals, and an id only where it is used."""
    tag = tag.replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", tag)
    for role, stand_in in _STAND_INS.items():
        tag = tag.replace(stand_in, f"var(--{role})")
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", " ".join(tag.split()))
