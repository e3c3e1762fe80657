"""The look of all figures, and how one becomes SVG: the same numbers give the same bytes.

A figure inside a page takes its colours and its font from the page: it is drawn in stand-ins, each
of which is replaced by a CSS variable afterwards. A figure in a file of its own has real colours.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedmeta.core.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = (380, 250)
"""Width and height of a chart beside others on a page, in CSS pixels."""
WIDE = 440
"""Width of a chart with a row per device or algorithm."""

_ROLES = ("ink", "muted", "rule", "page", "accent", "before", "worse", "source", "target")
_SERIES = 8
_VARIABLES = [*_ROLES, *(f"series-{i}" for i in range(_SERIES))]
STAND_INS = {name: f"#0a0b{number:02x}" for number, name in enumerate(_VARIABLES, start=0x10)}
"""By name of the CSS variable that replaces it."""

SERIES = ("#0a66a8", "#c8540a", "#00805d", "#a84d86", "#a87500", "#3a93c9", "#55595f", "#7a5a3c")
"""Colours of lines in files, told apart by people who see few colours too."""

_COMMON: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "svg.hashsalt": "fedmeta",  # ids that depend on nothing else
}
FILE: dict[Any, Any] = {
    **_COMMON,
    "figure.facecolor": "white",
    "font.size": 10,
    "grid.color": "#e6e8eb",
    "legend.frameon": False,
}
PAGE: dict[Any, Any] = {
    **_COMMON,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.edgecolor": STAND_INS["rule"],
    "axes.grid.axis": "y",
    "axes.labelcolor": STAND_INS["muted"],
    "axes.labelsize": 11,
    "axes.spines.left": False,
    "figure.constrained_layout.h_pad": 2 / 72,
    "figure.constrained_layout.w_pad": 2 / 72,
    "figure.dpi": 72,
    "figure.facecolor": "none",
    "font.size": 11,
    "grid.color": STAND_INS["rule"],
    "grid.linewidth": 0.8,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": STAND_INS["ink"],
    "text.parse_math": False,  # a node may be called "$x_1$"
    "xtick.color": STAND_INS["muted"],
    "xtick.labelsize": 11,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": STAND_INS["muted"],
    "ytick.labelsize": 11,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


def colour(role: str) -> str:
    """The stand-in of a CSS variable of the page."""
    return STAND_INS[role]


def series_colour(number: int) -> str:
    """The stand-in of one of several series."""
    return STAND_INS[f"series-{number % _SERIES}"]


def require_matplotlib() -> None:
    """Name the extra that is missing where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "report")


def svg(
    paint: Callable[[Figure], None],
    style: dict[Any, Any] = FILE,
    size: tuple[float, float] | None = None,
    **about: str,
) -> bytes:
    """Paint a figure and give it as an SVG document.

    Args:
        paint: draws on the empty figure it is given.
        style: matplotlib's settings: FILE or PAGE, with changes.
        size: width and height in inches; None: as `paint` sets it.
        about: metadata for the document.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(style), warnings.catch_warnings():
        # The browser has letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing")
        figure = Figure(figsize=size)
        paint(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, **about})
    return buffer.getvalue()
