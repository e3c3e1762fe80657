from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedmeta.core.errors import RunFolderError
from fedmeta.core.run_folder import RunFolder, difference
from fedmeta.core.versions import versions


def folder(path: Path) -> RunFolder:
    return RunFolder.create(path / "run", {"id": "x", "settings": {"a": 1}}, {"nodes": []})


def test_a_new_folder(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.settings() == {"format": 1, "id": "x", "settings": {"a": 1}}
    assert made.federation() == {"nodes": []}
    assert RunFolder.open(made.path) == made
    assert made.history() == []
    assert (made.model.name, made.report.name) == ("model.safetensors", "report.html")
    with pytest.raises(RunFolderError, match="holds a run already"):
        folder(tmp_path)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no run folder"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(RunFolderError, match="holds no run"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="has not ended"):
        folder(tmp_path).summary()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        RunFolder.create(tmp_path / "file", {}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": 2}', r"has format 2, this version reads 1"),
        ("{}", r"has format None, this version reads 1"),
        ("[]", r"\(settings of the run\) is damaged: not an object"),
    ],
)
def test_another_format(tmp_path: Path, content: str, message: str) -> None:
    made = folder(tmp_path)
    (made.path / "settings.json").write_text(content)
    with pytest.raises(RunFolderError, match=message):
        made.settings()


def test_history(tmp_path: Path) -> None:
    made = folder(tmp_path)
    records: list[dict[str, Any]] = [{"round": n, "meta_loss": 0.1 * n} for n in (1, 2, 3)]
    for record in records:
        made.append(record)
    assert made.history() == records
    with (made.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "meta_l')
    assert made.history() == records, "a half-written line is left out"
    assert made.rewind(2) == records[:2]
    assert made.history() == records[:2]
    assert (made.path / "metrics.jsonl").read_text().count("\n") == 2
    made.append(records[2])
    assert made.history() == records


@pytest.mark.parametrize("line", ['{"rou', '{"round": Infinity}', '{"round": 1e999}'])
def test_a_damaged_line_in_the_middle_is_named(line: str, tmp_path: Path) -> None:
    made = folder(tmp_path)
    (made.path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{line}\n{{"round": 3}}\n')
    with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        made.history()
    (made.path / "metrics.jsonl").write_bytes(b"\xff\xff\n")
    with pytest.raises(RunFolderError, match="cannot be read"):
        made.history()


def test_sweeping(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.remove_partial_files()  # nothing to do, not even a folder of checkpoints
    (made.checkpoints / ".round-000003.99.tmp").mkdir(parents=True)
    (made.checkpoints / ".round-000003.99.tmp" / "state.json").write_text("{")
    (made.checkpoints / "round-000002").mkdir()
    (made.path / ".metrics.jsonl.99.tmp").write_text("half")
    made.remove_partial_files()
    assert [each.name for each in made.checkpoints.iterdir()] == ["round-000002"]
    assert sorted(each.name for each in made.path.iterdir()) == [
        "checkpoints",
        "federation.json",
        "settings.json",
    ]


def test_lines_that_are_no_records(tmp_path: Path) -> None:
    made = folder(tmp_path)
    (made.path / "metrics.jsonl").write_text('{"round": 1}\n3\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl is damaged"):
        made.rewind(1)


def test_a_comparison_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "comparison.json").write_text("{}")
    with pytest.raises(RunFolderError, match="holds a comparison already"):
        folder(tmp_path)


def test_summary(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.write_summary({"status": "finished"})
    assert made.summary() == {"status": "finished"}
    assert json.loads((made.path / "summary.json").read_text()) == {"status": "finished"}


@pytest.mark.parametrize(
    ("stored", "given", "words"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": [1, 2]}, {"a": (1, 2)}, None),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b was 1 and is now 2"),
        ({"a": "sgd"}, {"a": "adam"}, "a was 'sgd' and is now 'adam'"),
        ({"a": 1}, {}, "a was 1 and is now None"),
        ({}, {"a": 1}, "a was None and is now 1"),
        ({"a": [1]}, {"a": [1, 2]}, r"a was [1] and is now [1, 2]"),
        ({"a": {"b": 1}}, {"a": 3}, "a was {'b': 1} and is now 3"),
    ],
)
def test_differences_in_words(stored: Any, given: Any, words: str | None) -> None:
    assert difference(stored, given) == words


def test_versions_name_what_matters() -> None:
    assert {"fedmeta", "python", "torch", "numpy", "safetensors"} <= set(versions())
