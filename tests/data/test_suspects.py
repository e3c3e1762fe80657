"""Columns that a stranger's table has and no model should learn from, and dates as people write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data import DataSettings, load
from fedmeta.data.checkup import check_up

ROWS = 120


def table(path: Path, **columns: list[str]) -> str:
    """A feature, a label and twelve devices, with further columns in front."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS).round(3)
    own = {
        "pressure": [str(each) for each in x],
        "plant": [f"p{i // 10}" for i in range(ROWS)],
        "state": ["bad" if each > 0 else "good" for each in x],
    }
    names = {**columns, **own}
    lines = [",".join(names), *map(",".join, zip(*names.values(), strict=True))]
    (path / "t.csv").write_text("\n".join(lines) + "\n")
    return str(path / "t.csv")


@pytest.mark.parametrize("scale", [1, 1_000, 1_000_000_000])
@pytest.mark.parametrize("name", ["ts", "time", "recordedTime", "unix_timestamp"])
def test_seconds_since_1970_are_no_feature(name: str, scale: int, tmp_path: Path) -> None:
    moments = [str((1_700_000_000 + 7 * i * i) * scale) for i in range(ROWS)]
    file = table(tmp_path, **{name: moments})
    found = load(DataSettings(file, label="state", node="plant"), 0)
    assert found.features == ("pressure",)
    assert f"no feature: {name!r}: dates" in " ".join(found.notes)
    ordered = load(DataSettings(file, label="state", node="plant", time=name), 0)
    assert all(node.support.max() < node.query.min() for node in ordered.nodes)


def test_numbers_under_the_name_of_a_time_stay_features(tmp_path: Path) -> None:
    since_start = [str(i % 50) for i in range(ROWS)]
    found = load(DataSettings(table(tmp_path, time=since_start), label="state", node="plant"), 0)
    assert found.features == ("time", "pressure")


@pytest.mark.parametrize("name", ["unit", "engine", "Anlage", "Gerät", "unit_nr", "dispositivo"])
def test_owners_by_other_names_are_no_feature(name: str, tmp_path: Path) -> None:
    file = table(tmp_path, **{name: [str(i // 20) for i in range(ROWS)]})
    found = load(DataSettings(file, label="state", node="plant"), 0)
    assert found.features == ("pressure",)
    assert f"{name!r}: an id by its name" in " ".join(found.notes)


def test_what_every_node_has_its_own_of_is_no_feature(tmp_path: Path) -> None:
    texts = [f"SN{900 - i // 10}" for i in range(ROWS)]
    wholes = [str(40 + (i // 10) ** 2) for i in range(ROWS)]
    kinds = ["new" if i // 10 % 2 else "old" for i in range(ROWS)]
    file = table(tmp_path, Seriennr=texts, cells=wholes, kind=kinds)
    found = load(DataSettings(file, label="state", node="plant"), 0)
    assert found.features == ("cells", "kind=new", "kind=old", "pressure")
    said = " ".join(found.notes)
    assert "'Seriennr': an id, of which every node has its own" in said
    assert "every node has its own 'cells': if it is an id" in said
    checked = check_up(DataSettings(file, label="state", node="plant"))
    assert checked.columns[0].role == "left out: an id, of which every node has its own"
    assert "--drop 'cells'" in " ".join(checked.change)
    named = DataSettings(file, label="state", node="plant", features=("Seriennr", "pressure"))
    assert len(load(named, 0).features) == 13


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__"])
def test_an_index_of_pandas_is_no_feature_in_any_order(name: str, tmp_path: Path) -> None:
    index = np.random.default_rng(1).permutation(ROWS)
    file = table(tmp_path, **{name: [str(each) for each in index]})
    assert load(DataSettings(file, label="state", node="plant"), 0).features == ("pressure",)


def test_a_forgotten_node_column_is_told_of_whatever_it_is_called(tmp_path: Path) -> None:
    file = table(tmp_path)
    found = check_up(DataSettings(file, label="state"))
    assert any("'plant' has 12 values: is it the device?" in line for line in found.change)
    settings = DataSettings(file, label="state", nodes=4, samples=(8, 12))
    assert "name it with --node 'plant'" in " ".join(load(settings, 0).notes)


def test_whole_numbers_that_never_come_again_are_told_of_in_training(tmp_path: Path) -> None:
    code = [str(9000 + 37 * i % 4999) for i in range(ROWS)]
    found = load(DataSettings(table(tmp_path, code=code), label="state", node="plant"), 0)
    assert "every value of 'code' differs: if it is an id" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("write", "good"),
    [
        (lambda i: f"{i % 28 + 1:02}.{i // 28 + 1:02}.2024 06:{i % 60:02}", True),
        (lambda i: f"{i % 28 + 1}/{i // 28 + 1}/2024", True),  # some day is above 12
        (lambda i: f"{i // 28 + 1}/{i % 28 + 1}/2024 06:00:01.25", True),
        (lambda i: f"{i % 12 + 1}/{i // 12 + 1}/2024", False),  # day or month?
        (lambda i: f"31.02.20{i % 30 + 10}", False),
    ],
)
def test_dates_as_people_write_them_order_a_split(write, good: bool, tmp_path: Path) -> None:
    file = table(tmp_path, when=[write(i) for i in range(ROWS)])
    settings = DataSettings(file, label="state", node="plant", time="when")
    if not good:
        with pytest.raises(
            DataError, match=r"column 'when' \d+ values neither a number nor a date"
        ):
            load(settings, 0)
        return
    days = [write(i) for i in range(ROWS)]
    assert len({*days}) > ROWS / 2
    found = load(settings, 0)
    assert all(node.support.max() < node.query.min() for node in found.nodes)


def test_columns_with_few_values_and_how_a_file_is_written_are_told(tmp_path: Path) -> None:
    remark = ["" if i % 10 else ["odd", "new"][i // 10 % 2] for i in range(ROWS)]
    file = table(tmp_path, remark=remark)
    text = Path(file).read_text().replace(",", ";").replace(".", ",")
    Path(file).write_text(text)
    found = check_up(DataSettings(file, label="state", node="plant", missing="mean"))
    assert "most of 'remark' is missing: --drop 'remark'?" in found.change
    assert found.written == "; semicolons between values, decimal commas"
    assert check_up(DataSettings(table(tmp_path), label="state", node="plant")).written == ""
