"""The tables of devices and of abstaining have the figures that the benchmarks left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "docs/how-to/from-a-run-to-a-microcontroller.md"
NUMBERS = ROOT / "docs/explanation/what-the-numbers-mean.md"


def results(name: str) -> list[dict[str, Any]]:
    """The rows of a results file."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "results" / name).read_text("utf-8"))["rows"]
    return rows


def cells(page: Path) -> Iterator[list[str]]:
    """The rows of all tables of a page, without what they are about."""
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("| "):
            yield [each.strip() for each in line.strip("|").split("|")][1:]


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def test_microcontroller() -> None:
    shown = list(cells(BOARD))
    rows = results("microcontroller.json")
    assert [row["kind"] for row in rows] == ["float32", "int8", "decides", "all layers"]
    for row in rows:
        counts = [row["instructions"][name] for name in ("predict", "sample", "step")]
        sizes = [f"{row[name]:,}" for name in ("ram", "stack", "flash")]
        assert [*sizes, *(f"{each / 1e6:.2f} million" for each in counts)] in shown
        assert row["ram"] == row["sections"] + row["stack"]
        assert row["stack"] <= row["told"]["stack"]
        assert not row["malloc"]
    motion = rows[0]
    assert motion["ram"] <= 64 << 10
    assert motion["flash"] <= 256 << 10


def test_abstaining() -> None:
    shown = list(cells(NUMBERS))
    rows = results("abstaining.json")
    for row in rows:
        wanted = []
        for way in ("seen", "cross-fitted"):
            found = row[way]
            gains = [signed(found[name]) for name in ("gained", "promised")]
            wanted += [f"{found['answered']:.1f} %", *gains]
        over, half = row["cross-fitted"]["over_promise"]
        assert [*wanted, f"{signed(over)} ± {half:.1f}"] in shown
    kept = [sum(row[way]["kept"] for row in rows) for way in ("cross-fitted", "seen")]
    words = f"kept at {kept[0]} of {len(rows)} places"
    assert words in NUMBERS.read_text("utf-8")
    assert f"right at {kept[1]}." in NUMBERS.read_text("utf-8")


@pytest.mark.parametrize("form", ["int8", "onnx int8"])
def test_eight_bits(form: str) -> None:
    shown = list(cells(BOARD))
    for row in results("int8.json"):
        lost, half = row[f"{form} less float32"]
        difference = f"{lost:+.2f} ± {half:.2f}".replace("-", "−")
        assert abs(lost) < 1
        assert any(
            {str(row["seeds"]), f"{row['float32']:.2f} %", difference} <= {*line} for line in shown
        )
