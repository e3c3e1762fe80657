"""Columns of tables: features, categories, gaps, order in time; the same from either reader."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedmeta.core.errors import DataError, SettingError
from fedmeta.data import DataSettings, load
from fedmeta.data.checkup import check_up
from fedmeta.data.encoding import EncodedColumn, Encoding, model_encoding
from fedmeta.data.readers import csv_file
from fedmeta.data.readers.table import TableSettings, read_inputs, read_table


def machines(tmp_path: Path, name: str = "machines.csv", gaps: bool = True) -> Path:
    rng = np.random.default_rng(1)
    lines = ["row;temperature;mode;ok;day;device_id;state"]
    for i in range(240):
        warm = "" if gaps and i % 40 == 3 else f"{rng.normal():.3f}".replace(".", ",")
        mode, ok = ["idle", "run", "off"][i % 3], ["True", "false"][i % 2]
        state = "worn" if i % 8 == 0 else "ok"
        lines.append(f"{i};{warm};{mode};{ok};2024-03-{30 - i % 20:02};{i // 20};{state}")
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(path: Path, **more: object) -> DataSettings:
    given = {"label": "state", "node": "device_id", "missing": "mean", **more}
    return DataSettings(str(path), **given)  # type: ignore[arg-type]


def test_either_reader_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = machines(tmp_path)
    with monkeypatch.context() as small:
        small.setattr(csv_file, "SMALL", 0)
        fast = load(settings(path), 0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    slow = load(settings(path), 0)
    assert slow.inputs.tolist() == fast.inputs.tolist()
    assert slow.labels.tolist() == fast.labels.tolist()
    assert (slow.features, slow.notes, slow.encoding) == (fast.features, fast.notes, fast.encoding)
    assert [n.support.tolist() for n in slow.nodes] == [n.support.tolist() for n in fast.nodes]


def test_ids_and_indices_are_no_features_unless_they_are_named(tmp_path: Path) -> None:
    path = machines(tmp_path)
    found = load(settings(path), 0)
    assert found.features == ("temperature", "mode=idle", "mode=off", "mode=run", "ok")
    told = " ".join(found.notes)
    assert "'row': an index of the rows" in told
    assert "'day': dates" in told
    asked = load(settings(path, features=("row", "temperature")), 0)
    assert asked.features == ("row", "temperature")
    dropped = load(settings(path, drop=("mode", "ok")), 0)
    assert dropped.features == ("temperature",)


def test_a_forgotten_node_column_is_noticed(tmp_path: Path) -> None:
    path = machines(tmp_path)
    drawn = load(settings(path, node=None, nodes=4, samples=(10, 12)), 0)
    assert "device_id" not in drawn.features
    assert any("--node 'device_id'" in note for note in drawn.notes)
    with pytest.raises(DataError, match="'device_id' has 12 values"):
        load(settings(path, node=None), 0)  # more nodes than samples: that is what is wrong


def test_gaps_are_filled_with_means_of_sources_and_the_means_travel(tmp_path: Path) -> None:
    found = load(settings(machines(tmp_path)), 0)
    raw = read_table(
        machines(tmp_path), label="state", node="device_id", table=TableSettings(missing="mean")
    ).inputs[:, 0]
    held = np.concatenate([each for n in found.sources for each in (n.support, n.query)])
    mean = np.nanmean(raw[held].astype(np.float64))
    gaps = np.isnan(raw)
    assert gaps.sum() == 6
    assert found.inputs[gaps, 0] == pytest.approx(mean)
    assert found.encoding is not None
    assert found.encoding.means[0] == pytest.approx(mean)
    assert model_encoding({"encoding": found.encoding.facts()}) == found.encoding


def test_gaps_are_errors_or_rows_less(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load(settings(machines(tmp_path), missing="error"), 0)
    assert "6 values missing in 6 rows ('temperature' 6) (line 5, line 45, line 85)" in str(
        error.value
    )
    found = load(settings(machines(tmp_path), missing="drop"), 0)
    assert len(found.labels) == 234
    assert "6 of 240 rows were left out for missing values" in found.notes


def test_an_ordered_split_has_support_before_query(tmp_path: Path) -> None:
    found = load(settings(machines(tmp_path), time="day"), 0)
    assert "day" not in found.features
    days = 30 - np.arange(240) % 20
    for node in found.nodes:
        assert days[node.support].max() < days[node.query].min()
    with pytest.raises(SettingError, match="without order"):
        settings(machines(tmp_path), node=None, partition="episodes", time="day")
    with pytest.raises(DataError, match="neither a number nor a date"):
        load(settings(machines(tmp_path), time="mode"), 0)


def test_a_value_that_training_has_not_seen_is_no_category(tmp_path: Path) -> None:
    columns = EncodedColumn("mode", ("idle", "run")), EncodedColumn("t")
    path = tmp_path / "new.csv"
    path.write_text("t,extra,mode\n1,x,run\n2,y,broken\n3,z,\n")
    found = read_inputs(path, Encoding(columns, "mean", (0.25, 0.75, 9.0)))
    assert found.inputs.tolist() == [[0, 1, 1], [0, 0, 2], [0.25, 0.75, 3]]
    assert "1 value unknown in training ('broken')" in found.notes[0]
    left = read_inputs(path, Encoding(columns, "drop"))
    assert left.gaps.tolist() == [False, False, True]


def test_types_that_change_further_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers at first, then fractions; a mode that begins with numbers."""
    monkeypatch.setattr(csv_file, "SMALL", 0)
    path = tmp_path / "long.csv"
    body = [f"{i % 7},{i % 3},x{i % 2}" for i in range(400_000)] + ["0.5,low,x1"]
    path.write_text("a,mode,label\n" + "\n".join(body) + "\n")
    with pytest.raises(DataError) as error:
        read_table(path)
    assert "in column 'mode' 1 value not a number ('low') (line 400002)" in str(error.value)
    pool = read_table(path, table=TableSettings(drop=("mode",)))
    assert pool.inputs[-1].tolist() == [0.5]


def test_the_check_up_says_what_to_change(tmp_path: Path) -> None:
    found = check_up(settings(machines(tmp_path), node=None, missing="error"))
    roles = {each.name: each.role for each in found.columns}
    assert roles["row"] == "left out: an index of the rows"
    assert (roles["temperature"], roles["state"]) == ("feature", "label")
    assert found.problem is not None
    assert found.classes == {"ok": 210, "worn": 30}
    told = " ".join(found.change)
    for words in ("6 values missing", "--node 'device_id'", "88 % of the labels are 'ok'"):
        assert words in told
    fine = check_up(settings(machines(tmp_path)))
    assert fine.problem is None
    assert fine.federation is not None
    temperature = next(each for each in fine.columns if each.name == "temperature")
    assert (temperature.kind, temperature.gaps) == ("number", 6)
