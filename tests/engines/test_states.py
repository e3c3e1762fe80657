from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.runs import CHUNKED, VALUES, everything, run
from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.objective import Adaptation
from fedmeta.engine.states import allocate, write
from fedmeta.models.networks import ModelSettings
from fedmeta.training import checkpoints
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation
from problems import double, flat, mlp

PLACES = ("device", "host", "disk")
ONE = {"dual": {"a": torch.zeros(1, 2, 3, dtype=torch.float64), "b": torch.zeros(1)}}


def on_file(leaf: torch.Tensor) -> bool:
    """Whether a tensor's memory is that of a mapped file."""
    start = leaf.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_ = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= start < last:
            return "fedmeta-states" in line or "(deleted)" in line
    raise AssertionError("no such memory")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.parametrize("place", PLACES)
def test_room_for_all(place: str, scratch: Path) -> None:
    states = allocate(ONE, 4, Execution(states=place), axis=0)
    assert states["dual"]["a"].shape == (4, 2, 3)
    assert states["dual"]["a"].dtype == torch.float64
    assert states["dual"]["b"].shape == (4,)
    for leaf in states["dual"].values():
        leaf.fill_(3.0)
        assert on_file(leaf) == (place == "disk")
    assert list(scratch.iterdir()) == []
    stacked = allocate({"dual": {"a": torch.zeros(2, 1, 3)}}, 5, Execution(states=place), axis=1)
    assert stacked["dual"]["a"].shape == (2, 5, 3)


def test_nothing_to_keep(scratch: Path) -> None:
    empty = {"dual": {"a": torch.zeros(1, 0, 3)}}
    assert allocate(empty, 4, Execution(states="disk"), axis=0)["dual"]["a"].shape == (4, 0, 3)
    assert allocate({}, 4, Execution(states="disk"), axis=0) == {}


def test_writing_by_slice_and_by_rows() -> None:
    place = torch.zeros(4, 2)
    write([place], (slice(1, 3),), [torch.ones(2, 2)])
    write([place], (torch.tensor([0, 3]),), [torch.full((2, 2), 2.0)])
    assert place[:, 0].tolist() == [2, 1, 1, 2]
    stacked = torch.zeros(2, 4)
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    write([stacked], (slice(None), torch.tensor([0, 2])), [values])
    assert stacked.tolist() == [[1, 0, 2, 0], [3, 0, 4, 0]]


@pytest.mark.parametrize("participation", [Participation(), Participation(0.6, lost=0.2)])
def test_every_place_gives_the_same_bits(participation: Participation, scratch: Path) -> None:
    algorithm = ADMMFedMeta(Adaptation(0.1), 0.5, rule="stale", dual_deviation=0.1)
    results = []
    for place in PLACES:
        execution = replace(CHUNKED, states=place)
        result, _ = run(algorithm, double(mlp()), execution, rounds=5, participation=participation)
        assert on_file(result.nodes["dual"]["0.weight"]) == (place == "disk")
        assert list(scratch.iterdir()) == []
        results.append(everything(result))
    assert results[0] == results[1] == results[2]


def test_algorithms_that_keep_nothing() -> None:
    assert run(FedAvg(), double(mlp()), replace(CHUNKED, states="disk"))[0].nodes == {}


@pytest.mark.parametrize("place", PLACES)
def test_checkpoints_and_resuming(place: str, tmp_path: Path, scratch: Path) -> None:
    def trained(name: str, **options: Any) -> Run:
        return train(
            VALUES,
            ModelSettings("mlp", hidden=(3,)),
            ADMMFedMeta(Adaptation(0.1), 0.5, rule="stale"),
            TrainingSettings(rounds=5, checkpoint_every=1, keep_checkpoints=9),
            execution=Execution(path="batched", chunk=2, threads=1, states=place),
            participation=Participation(0.6),
            folder=tmp_path / name,
            **options,
        )

    whole = trained("whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for number in (3, 4, 5):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / f"round-{number:06d}")
    resumed = trained("cut", resume=True)
    assert resumed.summary["settings"]["execution"]["states"] == place
    assert torch.equal(flat(resumed.meta_model.theta), flat(whole.meta_model.theta))
    for number in checkpoints.rounds(tmp_path / "whole" / "checkpoints"):
        states = [
            (tmp_path / name / "checkpoints" / f"round-{number:06d}" / "state.safetensors")
            for name in ("whole", "cut")
        ]
        assert states[0].read_bytes() == states[1].read_bytes()
    assert list(scratch.iterdir()) == []


def test_a_file_is_as_large_as_its_states(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    mapped = np.memmap

    def watched(file: Any, *arguments: Any, **options: Any) -> Any:
        result = mapped(file, *arguments, **options)
        file.seek(0, 2)
        made.append(file.tell())
        return result

    monkeypatch.setattr(np, "memmap", watched)
    allocate(ONE, 4, Execution(states="disk"), axis=0)
    assert made == [4 * 6 * 8, 4 * 4]
