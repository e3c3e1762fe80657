"""Labels of tables that look like values: refused where they are, told of where they may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data import DataSettings, load
from fedmeta.data.checkup import check_up
from fedmeta.data.readers import csv_file


def hours(tmp_path: Path, spread: int, divisor: int) -> DataSettings:
    """Semicolons, decimal commas; the label is a number of hours."""
    rng = np.random.default_rng(4)
    lines = ["warmth;device_id;hours"]
    for row in range(400):
        warmth, left = f"{rng.normal():.3f}", f"{(row * 37 % spread) / divisor:g}"
        lines.append(f"{warmth};{row // 40};{left}".replace(".", ","))
    path = tmp_path / "hours.csv"
    path.write_text("\n".join(lines) + "\n")
    return DataSettings(str(path), label="hours", node="device_id")


@pytest.mark.parametrize("small", [0, 10**9], ids=["pyarrow", "python"])
def test_values_with_decimal_commas_are_no_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    if small == 0:
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(csv_file, "SMALL", small)
    with pytest.raises(DataError) as error:
        load(hours(tmp_path, 300, 8), 0)
    told = error.value.for_shell
    assert "in label column 'hours'" in told
    assert "not a class ('4,625', " in told
    assert told.endswith("--task regression")
    found = check_up(hours(tmp_path, 300, 8))
    assert found.problem is not None
    assert "--task regression" in found.change[0]


def test_hundreds_of_whole_numbers_as_classes_are_told_of(tmp_path: Path) -> None:
    found = load(hours(tmp_path, 300, 1), 0)
    advice = "label 'hours' has 300 different numbers, each a class: for values use"
    assert any(advice in note and "--task regression" in note for note in found.notes)
    assert any(advice in line for line in check_up(hours(tmp_path, 300, 1)).change)
    few = load(hours(tmp_path, 5, 1), 0)
    assert not any("--task regression" in note for note in few.notes)


def test_large_numbers_are_shown_in_digits(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    rows = [f"{100000 + 7 * row},{row % 3},{'ab'[row % 2]}" for row in range(60)]
    path.write_text("\n".join(["part_id,heat,label", *rows]) + "\n")
    shown = {each.name: each.values for each in check_up(DataSettings(str(path))).columns}
    assert shown["part_id"] == "100000 to 100413"
