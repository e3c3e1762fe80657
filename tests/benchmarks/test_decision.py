"""The benchmarks of deciding and of abstaining, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import abstaining, decision


def test_rows_are_of_held_out_nodes_and_models_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision, "DIVISIONS", 2)
    results = tmp_path / "decision.json"
    line = ["--models", str(tmp_path / "models"), "--seeds", "2", "--rounds", "2"]
    line += ["--place", "bands.csv/own-nodes", "thermometers.csv/own-nodes"]
    decision.main([*line, "--results", str(results)])
    printed = capsys.readouterr().out
    classes, values = json.loads(results.read_text())["rows"]
    assert classes["seeds"] == 2
    held_out = round(0.2 * 32)  # of 32 source nodes
    assert sum(classes["choices"].values()) == 2 * 2 * held_out
    assert classes["gain"][0] == pytest.approx(classes["decided"] - classes["one"], abs=0.05)
    assert values["one"] < 0  # an error, in percent of that of each node's own mean
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "models").rglob("*.safetensors")}
    assert len(kept) == 4
    decision.main(line)
    assert capsys.readouterr().out == printed
    decision.main([*line[:-1], "--results", str(results)])  # a place alone: the other's row stays
    again = json.loads(results.read_text())["rows"]
    assert again == [classes, values]
    assert "2 places: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="other rounds"):
        decision.main([*line, "--rounds", "3", "--results", str(results)])
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())


def test_the_promise_is_of_models_that_have_not_seen_the_counting_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision, "DIVISIONS", 2)
    results = tmp_path / "abstaining.json"
    line = ["--models", str(tmp_path / "models"), "--seeds", "2", "--rounds", "2"]
    line += ["--place", "bands.csv/own-nodes", "thermometers.csv/own-nodes"]
    abstaining.main([*line, "--results", str(results)])
    (row,) = json.loads(results.read_text())["rows"]  # values have no margins
    for way in abstaining.WAYS:
        found = row[way]
        over, half = found["over_promise"]
        assert over == pytest.approx(found["gained"] - found["promised"], abs=0.02)
        assert found["kept"] == (abs(over) <= half)
        assert found["over_share"][0] == pytest.approx(found["answered"] - 90, abs=0.06)
    assert row["seen"]["promised"] != row["cross-fitted"]["promised"]
    assert "of 1 places" in capsys.readouterr().out
