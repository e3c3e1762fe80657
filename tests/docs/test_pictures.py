"""Labels of the hand-made pictures fit where they stand, in the widest font that is common."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

OVERVIEW = Path(__file__).parents[2] / "docs/assets/overview.svg"


def test_the_label_of_the_platform_stays_inside_its_circle() -> None:
    textpath = pytest.importorskip("matplotlib.textpath")
    fonts = pytest.importorskip("matplotlib.font_manager")
    drawn = OVERVIEW.read_text(encoding="utf-8")
    circle = re.search(r'<circle cx="414" cy="127" r="(\d+)"', drawn)
    label = re.search(r'y="(\d+)"[^>]*font-size="([\d.]+)"[^>]*>meta-model<', drawn)
    assert circle
    assert label
    bold = fonts.FontProperties(family="DejaVu Sans", weight="bold")
    width = textpath.TextPath((0, 0), "meta-model", size=float(label[2]), prop=bold)
    chord = 2 * (float(circle[1]) ** 2 - (127 - float(label[1]) + 6) ** 2) ** 0.5
    assert width.get_extents().width < 0.9 * chord
