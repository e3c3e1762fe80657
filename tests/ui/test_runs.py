from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.calling import snapshot
from fedmeta.core.errors import RunFolderError
from fedmeta.ui import runs as module
from fedmeta.ui.runs import RunIndex

ESCAPES = ["..", "../runs", "/etc", "digits/../../..", "", ".", "a\0b", "x" * 5000, "digits/model"]


def test_all_kinds_are_listed(runs: Path) -> None:
    rows = {row.name: row for row in RunIndex(runs).rows()}
    assert set(rows) == {"digits", "group/other", "table", "waves", "both", "broken", "half"}
    digits = rows["digits"]
    assert (digits.kind, digits.status, digits.rounds, digits.planned) == ("run", "finished", 3, 3)
    summary = json.loads((runs / "digits/summary.json").read_text())
    assert digits.before == summary["target_metric"]["0"]["mean"]
    assert digits.after == summary["target_metric"]["1"]["mean"]
    assert (rows["both"].kind, rows["both"].title) == ("comparison", "fedavg, reptile")


def test_damage_is_told_and_comes_last(runs: Path) -> None:
    *_, first, second = RunIndex(runs).rows()
    assert {first.name, second.name} == {"broken", "half"}
    assert {first.status, second.status} == {"damaged"}
    problems = {first.name: first.problem, second.name: second.problem}
    assert problems["broken"].startswith("settings.json")
    assert problems["half"] == "it has no settings.json"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("settings.json", "[]"),
        ("settings.json", '{"format": 1}'),
        ("settings.json", '{"format": 1, "settings": {"algorithm": 3}}'),
        ("summary.json", "null"),
        ("summary.json", '{"status": "finished", "rounds": {}}'),
        ("summary.json", '{"status": "finished", "rounds": 1, "metric": "m", "target_metric": 1}'),
        ("summary.json", b"\xff\xfe"),
    ],
)
def test_any_damage_stays_in_its_row(
    runs: Path, tmp_path: Path, file: str, content: str | bytes
) -> None:
    for name in ("good", "bad"):
        shutil.copytree(runs / "digits", tmp_path / name)
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "bad" / file).write_bytes(raw)
    assert [(r.name, r.status) for r in RunIndex(tmp_path).rows()] == [
        ("good", "finished"),
        ("bad", "damaged"),
    ]


def test_rows_are_read_once_and_again_when_they_change(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "digits", tmp_path / "one")
    read, calls = module._read, []
    monkeypatch.setattr(module, "_read", lambda *args: calls.append(args[0]) or read(*args))
    index = RunIndex(tmp_path)
    assert index.rows() == index.rows()
    assert calls == ["one"]
    (tmp_path / "one/summary.json").unlink()
    (row,) = index.rows()
    assert (row.status, row.rounds, calls) == ("unfinished", 3, ["one", "one"])


@pytest.mark.parametrize("name", ESCAPES)
def test_names_cannot_leave_the_folder(runs: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="there is no"):
        RunIndex(runs).folder(name)


def test_links_that_lead_out_are_not_followed(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/link").symlink_to(runs / "digits")
    index = RunIndex(tmp_path / "inside")
    assert index.rows() == []
    with pytest.raises(RunFolderError):
        index.folder("link")


def test_looking_changes_nothing(runs: Path) -> None:
    before = snapshot(runs)
    RunIndex(runs).rows()
    assert snapshot(runs) == before


def test_sequences_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "seq"
    folder.mkdir()
    declaration = {"format": 1, "name": "digits", "methods": ["none"], "seeds": [0]}
    (folder / "declaration.json").write_text(json.dumps(declaration))
    (row,) = RunIndex(tmp_path).rows()
    assert (row.kind, row.status, row.title) == ("sequence", "unfinished", "none")
    (folder / "sequence.json").write_text("{}")
    (row,) = RunIndex(tmp_path).rows()
    assert row.status == "damaged"
