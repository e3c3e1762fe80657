from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fedmeta.algorithms import PlatformState
from fedmeta.core.errors import RunFolderError
from fedmeta.training import checkpoints
from fedmeta.training.checkpoints import Checkpoint


def point(number: int, value: float = 1.0) -> Checkpoint:
    theta = {"b.weight": torch.full((2, 3), value).double(), "a.bias": torch.tensor(value)}
    memory = {"moment": {"b.weight": torch.full((2, 3), 2 * value)}}
    return Checkpoint(
        number, PlatformState(theta, memory), {"dual": {"a.bias": torch.arange(4.0) * value}}
    )


LIKE = point(0, 0.0)


def test_round_trip(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, point(7, 0.1), keep=2)
    assert path.name == "round-000007"
    read = checkpoints.load(tmp_path, 7, LIKE)
    assert read.round == 7
    assert list(read.state.theta) == ["b.weight", "a.bias"], "in the model's order, not the file's"
    expected = point(7, 0.1)
    assert torch.equal(read.state.theta["b.weight"], expected.state.theta["b.weight"])
    assert read.state.theta["b.weight"].dtype == torch.float64
    assert torch.equal(
        read.state.memory["moment"]["b.weight"], expected.state.memory["moment"]["b.weight"]
    )
    assert torch.equal(read.nodes["dual"]["a.bias"], expected.nodes["dual"]["a.bias"])


def test_only_the_newest_stay(tmp_path: Path) -> None:
    assert checkpoints.rounds(tmp_path / "none") == []
    for number in (8, 9, 10, 1_000_000):
        checkpoints.save(tmp_path, point(number), keep=2)
    assert checkpoints.rounds(tmp_path) == [10, 1_000_000]
    (tmp_path / ".round-000011.1.tmp").mkdir()
    (tmp_path / "notes").mkdir()
    assert checkpoints.rounds(tmp_path) == [10, 1_000_000]


def test_a_full_disk_keeps_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save(tmp_path, point(1), keep=1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="No space left"):
        checkpoints.save(tmp_path, point(2), keep=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["round-000001"]
    assert checkpoints.load(tmp_path, 1, LIKE).round == 1


@pytest.mark.parametrize("size", [0, 10, -1])
def test_truncated(tmp_path: Path, size: int) -> None:
    checkpoints.save(tmp_path, point(3), keep=3)
    file = checkpoints.save(tmp_path, point(5), keep=3) / "state.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(
        RunFolderError, match=r"round-000005 is truncated or damaged: delete .* from round 3"
    ):
        checkpoints.load(tmp_path, 5, LIKE)


def test_one_flipped_bit_is_seen(tmp_path: Path) -> None:
    file = checkpoints.save(tmp_path, point(5), keep=3) / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"damaged: delete .* start again from round 0"):
        checkpoints.load(tmp_path, 5, LIKE)


def test_half_missing(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, point(5), keep=3)
    (path / "state.safetensors").unlink()
    with pytest.raises(RunFolderError, match="cannot be read"):
        checkpoints.load(tmp_path, 5, LIKE)
    (path / "state.json").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        checkpoints.load(tmp_path, 5, LIKE)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"format": 99}, r"has format 99, this version reads 1"),
        ({}, r"has format None, this version reads 1"),
        ([], r"state\.json \(checkpoint\) is damaged: not an object"),
    ],
)
def test_another_format(tmp_path: Path, facts: object, message: str) -> None:
    path = checkpoints.save(tmp_path, point(5), keep=3)
    (path / "state.json").write_text(json.dumps(facts))
    with pytest.raises(RunFolderError, match=message):
        checkpoints.load(tmp_path, 5, LIKE)


def test_no_round_in_it(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, point(5), keep=3)
    facts = json.loads((path / "state.json").read_text())
    del facts["round"]
    (path / "state.json").write_text(json.dumps(facts))
    with pytest.raises(RunFolderError, match="is not complete"):
        checkpoints.load(tmp_path, 5, LIKE)


def test_another_model_or_algorithm(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, point(5), keep=3)
    for like, message in [
        (
            Checkpoint(0, PlatformState({"b.weight": torch.zeros(2, 4)}, LIKE.state.memory), {}),
            r"'nodes/dual/a\.bias' is \(4,\) there and absent here",
        ),
        (
            Checkpoint(0, LIKE.state, {"dual": {"a.bias": torch.zeros(5)}}),
            r"'nodes/dual/a\.bias' is \(4,\) there and \(5,\) here",
        ),
        (
            Checkpoint(0, PlatformState(LIKE.state.theta), LIKE.nodes),
            r"'memory/moment/b\.weight' is \(2, 3\) there and absent here",
        ),
    ]:
        with pytest.raises(RunFolderError, match=message):
            checkpoints.load(tmp_path, 5, like)
