from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta.core import tree
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.storage import read_tensors
from fedmeta.priors import SquaredMahalanobis, federated_fisher
from fedmeta.priors.importance import UNIT
from fedmeta.studies.sequences import TaskSequence, running
from fedmeta.studies.sequences.carrying import Past, next_task, shared_network, start
from fedmeta.studies.sequences.declaration import sequence_from
from fedmeta.studies.sequences.drawing import draw
from fedmeta.studies.sequences.gating import gate_summary
from fedmeta.studies.sequences.isolation import body, head
from fedmeta.studies.sequences.running import run_sequence
from fedmeta.training.callbacks import Callback
from fedmeta.training.many import jobs_together
from fedmeta.training.train import train_run
from sequences.problems import small

METHODS = {"outputs": 1.0, "fedlwf": 1.0, "replay+euclidean": 0.1, "isolation+fisher": 0.1}


@pytest.mark.parametrize(("method", "strength"), METHODS.items())
def test_seeds_together_are_those_one_by_one(method: str, strength: float | None) -> None:
    sequence = small(method, strength)
    wide = {**sequence.settings, "execution": {"threads": 1, "dtype": "float64", "path": "batched"}}
    sequence = replace(sequence, settings=wide)
    together = run_sequence(sequence, [0, 1])
    alone = [found for seed in (0, 1) for found in run_sequence(sequence, [seed])]
    for one, other in zip(together, alone, strict=True):
        assert one["accuracy"] == other["accuracy"]
        assert one["cost"] == pytest.approx(other["cost"], rel=1e-5)
    assert np.shape(together[0]["accuracy"]) == np.shape(together[0]["precise"]) == (4, 3)


def test_strength_zero_is_no_prior_bit_for_bit(tmp_path: Path) -> None:
    run_sequence(small("none"), [0, 1], folder=tmp_path / "none")
    run_sequence(small("fisher", 0.0), [0, 1], folder=tmp_path / "zero")
    assert models(tmp_path / "none") == models(tmp_path / "zero")


def models(folder: Path) -> dict[str, dict[str, bytes]]:
    """The parameters of every run below a folder."""
    return {
        str(file.relative_to(folder)): {
            name: leaf.numpy().tobytes() for name, leaf in read_tensors(file, "model")[0].items()
        }
        for file in sorted(folder.rglob("model.safetensors"))
    }


class StopError(Exception):
    """Somebody pulls the plug."""


class StopAfter(Callback):
    """Pulls the plug after so many rounds of all trainings."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, record: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise StopError


@pytest.mark.parametrize(
    ("method", "seeds"),
    [
        ("replay+euclidean", [0]),
        ("isolation+fisher", [0, 1]),
        ("target", [0]),
        pytest.param("generated", [0, 1], marks=pytest.mark.slow),
        pytest.param("fedewc", [0, 1], marks=pytest.mark.slow),
        pytest.param("fedlwf", [0], marks=pytest.mark.slow),
        pytest.param("outputs", [0], marks=pytest.mark.slow),
        pytest.param("outputs", [0, 1], marks=pytest.mark.slow),
        pytest.param("isolation+fisher", [0], marks=pytest.mark.slow),
        pytest.param("replay+euclidean", [0, 1], marks=pytest.mark.slow),
    ],
)
def test_interrupted_sequence_ends_as_if_it_had_not_been(
    tmp_path: Path, method: str, seeds: Sequence[int]
) -> None:
    sequence = small(method)
    whole = run_sequence(sequence, seeds, folder=tmp_path / "whole")
    stop = StopAfter(7)  # in the second task
    with pytest.raises(StopError):
        run_sequence(sequence, seeds, folder=tmp_path / "cut", progress=lambda _: [stop])
    assert len(models(tmp_path / "cut")) == len(seeds)
    assert run_sequence(sequence, seeds, folder=tmp_path / "cut") == whole
    assert models(tmp_path / "cut") == models(tmp_path / "whole")


def test_finished_sequence_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_sequence(small(), [0, 1], folder=tmp_path)
    monkeypatch.setattr(running, "jobs_together", None)
    assert run_sequence(small(), [0, 1], folder=tmp_path) == first


def learned(method: str, seeds: Sequence[int] = (0, 1)) -> tuple[TaskSequence, dict[int, Past]]:
    """A sequence with its first two tasks behind it."""
    sequence = small(method)
    pasts = {seed: Past(draw(sequence, seed)) for seed in seeds}
    for number in (0, 1):
        network = shared_network(list(pasts.values()))
        for seed, past in pasts.items():
            run = train_run(next_task(sequence, number, seed, past, network))
            assert not isinstance(run, Exception)
            past.keep(sequence, run.meta_model)
    return sequence, pasts


@pytest.mark.parametrize("method", ["euclidean", "fisher", "outputs", "isolation+euclidean"])
def test_priors_of_seeds_differ_and_they_are_trained_together(method: str) -> None:
    sequence, pasts = learned(method)
    network = shared_network(list(pasts.values()))
    repeats = [next_task(sequence, 2, seed, past, network) for seed, past in pasts.items()]
    priors = [getattr(each.spec.algorithm, "prior") for each in repeats]  # noqa: B009
    one, other = (each.prior for each in priors)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert jobs_together(repeats) is not None


def test_importance_adds_up_over_tasks() -> None:
    sequence, pasts = learned("fisher", [0])
    past = pasts[0]
    first = past.importance[0]
    prior = getattr(next_task(sequence, 2, 0, past, None).spec.algorithm, "prior")  # noqa: B009
    second = federated_fisher(past.models[1], past.drawn.tasks[1])
    for name, leaf in prior.importance.items():
        assert torch.allclose(leaf, (first[name] + second[name]) / 2)  # EWC's ½


def test_isolated_tasks_start_with_a_head_of_their_own() -> None:
    sequence, pasts = learned("isolation+euclidean", [0])
    past = pasts[0]
    repeat = next_task(sequence, 2, 0, past, None)
    assert repeat.spec.start is not None
    fresh = start(sequence.of_task(0, 0), past.drawn)
    before, own = past.models[1], head(past.models[1], fresh)
    assert all(torch.equal(repeat.spec.start[name], leaf) for name, leaf in own.items())
    assert all(torch.equal(repeat.spec.start[name], leaf) for name, leaf in body(before).items())
    assert {*own} | {*body(before)} == {*before.theta}
    assert list(own) == ["3.weight", "3.bias"]
    prior = getattr(repeat.spec.algorithm, "prior")  # noqa: B009
    assert set(prior.prior) == set(body(before))


def test_a_task_may_follow_another_than_the_last() -> None:
    sequence = small("euclidean")
    tasks = (*sequence.tasks[:2], replace(sequence.tasks[2], after="0-1"))
    sequence, past = replace(sequence, tasks=tasks), Past(draw(sequence, 0))
    for number in (0, 1):
        past.keep(sequence, train_run(next_task(sequence, number, 0, past, None)).meta_model)
    repeat = next_task(sequence, 2, 0, past, None)
    assert repeat.spec.start is past.models[0].theta


def test_joint_training_is_judged_once() -> None:
    (found,) = run_sequence(small("joint"), [0])
    assert np.shape(found["accuracy"]) == (1, 3)
    assert "cost" not in found


def test_samples_that_devices_keep_are_in_no_file(tmp_path: Path) -> None:
    sequence = small("replay")
    run_sequence(sequence, [0], folder=tmp_path)
    first = draw(sequence, 0).tasks[0]
    kept = np.concatenate([np.r_[node.support, node.query] for node in first.sources])
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 10
    for sample in first.inputs[kept]:
        for written in (sample.tobytes(), sample.astype(np.float32).tobytes()):
            assert not any(written in content for content in files)


def test_a_seed_that_diverges_is_told_and_the_others_go_on() -> None:
    wild = {**small().settings, "algorithms": {"admm-fedmeta": {"penalty": 1e-9}}}
    found = run_sequence(replace(small(), settings=wild), [0, 1])
    assert [each["diverged"] for each in found] == [True, True]
    assert found[0]["why"].startswith("task 0-1: ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "fedavg"}, "fedavg takes no prior, but the method is 'euclidean'"),
        ({"data": {"name": "digits", "nodes": 6, "target_share": 0.0}}, "has no target nodes"),
    ],
)
def test_what_a_method_cannot_do(settings: dict[str, Any], words: str) -> None:
    sequence = small("euclidean")
    with pytest.raises(SettingError, match=words):
        run_sequence(replace(sequence, settings={**sequence.settings, **settings}))


def test_outputs_need_samples_of_nobody(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    owners = np.repeat(list("abcdef"), 12)
    np.savez(tmp_path / "p.npz", x=rng.normal(size=(72, 3)), y=np.arange(72) % 3, who=owners)
    data = {"name": str(tmp_path / "p.npz"), "node": "who", "target_share": 0.3}
    tasks = [{"name": "one", "nodes": list("abc")}, {"name": "two", "nodes": list("def")}]
    settings = {"data": data, "training": {"rounds": 1}, "model": {"hidden": [4]}}
    table = {"tasks": tasks, "settings": settings, "method": "outputs"}
    with pytest.raises(DataError, match="the platform has no samples"):
        run_sequence(sequence_from(table, "people"))


def test_auto_counts_every_earlier_task_alike() -> None:
    """A normalised diagonal for each, and a λ that nobody has to choose."""
    sequence, pasts = learned("auto", [0])
    past = pasts[0]
    held = next_task(sequence, 2, 0, past, None).spec.algorithm.prior
    assert isinstance(held, SquaredMahalanobis)
    assert held.strength == UNIT
    total = sum(float(leaf.sum()) for leaf in held.importance.values())
    entries = sum(leaf.numel() for leaf in held.importance.values())
    assert total / entries == pytest.approx(2 * 0.5, rel=1e-5)  # ½ (F̂₁ + F̂₂)
    own = federated_fisher(past.models[1], past.drawn.tasks[1])
    past.importance.pop(1)
    louder = replace(past, diagonals={1: tree.scale(9.0, own)})
    again = next_task(sequence, 2, 0, louder, None).spec.algorithm.prior
    assert isinstance(again, SquaredMahalanobis)
    for name, leaf in held.importance.items():
        assert torch.allclose(again.importance[name], leaf)
    twice = next_task(sequence.using("auto", 2.0), 2, 0, past, None).spec.algorithm.prior
    assert twice is not None
    assert twice.strength == 2 * UNIT


def test_the_gate_speaks_after_every_task() -> None:
    """Of the model before and after, on every earlier task; the verdicts are those of the rule."""
    few = small()
    more = {**few.settings, "data": {**few.settings["data"], "nodes": 15}}
    (found,) = run_sequence(replace(few, settings=more), [0])
    gate = found["gate"]
    assert [len(update) for update in gate] == [1, 2]
    accuracy = found["precise"]
    for number, update in enumerate(gate, start=1):
        for task, verdict in enumerate(update):
            fall = 100 * (accuracy[number][task] - accuracy[number + 1][task])
            assert verdict["fall"] == pytest.approx(fall, abs=1e-3)
            assert verdict["against"] == f"the model after {['0-1', '2-3'][number - 1]}"
            assert verdict["limit"] == 1.0
    summary = gate_summary([found])
    assert summary is not None
    blocked = sum(any(each["blocked"] for each in update) for update in gate)
    assert (summary["updates"], summary["blocked"]) == (2, blocked)


def test_the_gate_says_nothing_of_too_few_targets() -> None:
    (found,) = run_sequence(small("none"), [0])  # one target in each task
    assert found["gate"] == [[], []]


def test_a_killed_sequence_has_the_verdicts_of_one_that_was_not(tmp_path: Path) -> None:
    few = small("auto", platform=6)
    more = {**few.settings, "data": {**few.settings["data"], "nodes": 15}}
    sequence = replace(few, settings=more)
    whole = run_sequence(sequence, [0], folder=tmp_path / "whole")
    assert [len(update) for update in whole[0]["gate"]] == [1, 2]
    for rounds in (3, 6):  # in the first task; and, once that has ended, in the second
        stop = StopAfter(rounds)
        with pytest.raises(StopError):
            run_sequence(sequence, [0], folder=tmp_path / "cut", progress=lambda _, s=stop: [s])
    assert run_sequence(sequence, [0], folder=tmp_path / "cut") == whole
    assert models(tmp_path / "cut") == models(tmp_path / "whole")
