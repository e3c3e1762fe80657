from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedmeta.core import storage
from fedmeta.core.errors import RunFolderError


def failing(after: int) -> Callable[[int], None]:
    """An fsync that finds the disk full the n-th time."""
    calls = 0

    def fsync(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(28, "No space left on device")

    return fsync


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None], "ρ": "θ"}
    storage.write_json(tmp_path / "a.json", value)
    assert storage.read_json(tmp_path / "a.json", "test") == value
    assert "ρ" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path: Path, bad: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(tmp_path / "a.json", {"a": bad})
    assert names(tmp_path) == []


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    storage.write_bytes(file, b"old")
    monkeypatch.setattr(os, "fsync", failing(after=0))
    with pytest.raises(RunFolderError, match=r"cannot write .*a\.bin \(No space left on device\)"):
        storage.write_bytes(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_write_that_stops_halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are half there when the error comes."""
    file = tmp_path / "a.bin"
    storage.write_bytes(file, b"old")

    def half(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(storage, "_write_synced", half)
    with pytest.raises(RunFolderError, match="Input/output error"):
        storage.write_bytes(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_folder_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(after))
    with pytest.raises(RunFolderError, match="No space left"):
        storage.write_folder(tmp_path / "point", {"a": b"1", "b": b"2"})
    assert names(tmp_path) == []


def test_folder_round_trip_and_replacement(tmp_path: Path) -> None:
    storage.write_folder(tmp_path / "deep" / "point", {"a": b"1", "b": b"2"})
    storage.write_folder(tmp_path / "deep" / "point", {"a": b"3"})
    assert names(tmp_path / "deep") == ["point"]
    assert names(tmp_path / "deep" / "point") == ["a"]
    assert (tmp_path / "deep" / "point" / "a").read_bytes() == b"3"


def test_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot write"):
        storage.write_bytes(tmp_path / "no" / "such" / "a.bin", b"")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        storage.write_folder(tmp_path / "file" / "point", {"a": b"1"})
    with pytest.raises(RunFolderError, match="cannot write"):
        storage.append_line(tmp_path / "no" / "log", "x")


def test_lines_are_added(tmp_path: Path) -> None:
    for line in ("one", "zwei ρ"):
        storage.append_line(tmp_path / "log", line)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "one\nzwei ρ\n"


def test_tensors_round_trip(tmp_path: Path) -> None:
    base = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    tensors = {"a": base.T, "b": base[0], "c": torch.tensor(3), "d": base[0]}
    storage.write_tensors(tmp_path / "t", tensors, {"about": "ρ"})
    read, text = storage.read_tensors(tmp_path / "t", "test")
    assert text == {"about": "ρ"}
    assert set(read) == set(tensors)
    assert all(torch.equal(read[name], leaf) for name, leaf in tensors.items())
    assert storage.payload_bytes(tensors) > 12 * 8


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"not tensors at all"])
def test_damaged_tensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"\(parameters\) is damaged or not a safetensors"):
        storage.read_tensors(tmp_path / "t", "parameters")


def test_missing_and_damaged_json(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"there is no .*a\.json \(settings\)"):
        storage.read_json(tmp_path / "a.json", "settings")
    with pytest.raises(RunFolderError, match=r"there is no .*t \(model\)"):
        storage.read_tensors(tmp_path / "t", "model")
    (tmp_path / "a.json").write_text(json.dumps({"a": 1})[:-1])
    with pytest.raises(RunFolderError, match=r"\(settings\) is damaged"):
        storage.read_json(tmp_path / "a.json", "settings")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RunFolderError, match=r"\(settings\) is damaged"):
        storage.read_json(tmp_path / "a.json", "settings")


def test_private_files_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        folder = tmp_path / "open"
        folder.mkdir()
        storage.private_folder(folder)
        storage.private_folder(tmp_path / "new/deep")
        storage.write_json(folder / "a.json", {}, private=True)
        storage.write_tensors(folder / "b.safetensors", {"a": torch.zeros(1)}, {}, private=True)
        storage.append_line(folder / "c.jsonl", "{}", private=True)
        storage.write_json(folder / "d.json", {})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {"a.json": 0o600, "b.safetensors": 0o600, "c.jsonl": 0o600, "d.json": 0o666}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new/deep").stat().st_mode & 0o777 == 0o700
