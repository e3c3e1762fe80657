"""Long streams: tasks that return, borders that the platform finds, memory that does not grow."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta.config.toml_files import merged
from fedmeta.core.errors import SettingError
from fedmeta.studies.sequences import TaskSequence
from fedmeta.studies.sequences.carrying import Past, look_for_border, next_task
from fedmeta.studies.sequences.declaration import sequence_from
from fedmeta.studies.sequences.drawing import draw
from fedmeta.studies.sequences.drift import LossSums, Watch
from fedmeta.studies.sequences.running import run_sequence
from fedmeta.training.train import train_run
from sequences.problems import SETTINGS, small
from sequences.test_running import StopAfter, StopError, models


def found(losses: list[list[float]]) -> list[int]:
    watch, borders = Watch(), []
    for number, each in enumerate(losses):
        watch, border = watch.after(LossSums.of(each))
        if border:
            borders.append(number)
    return borders


def test_score_by_hand() -> None:
    """Means 1 and 2 with e² = ¼ each: z = 1/√½, S = z − 1."""
    watch = Watch()
    for told in ([9.0, 9.0], [0.5, 1.5], [1.5, 2.5]):
        watch, border = watch.after(LossSums.of(told))
        assert not border
    assert watch.score == pytest.approx(np.sqrt(2) - 1)
    assert watch.reference == LossSums(4, 6.0, 11.0)


STREAMS = 300


def segments(seed: int, means: list[float]) -> list[list[float]]:
    """Losses of ten nodes per segment; the first meets a model that knows nothing."""
    rng = np.random.default_rng(seed)
    return [rng.normal(mean, 0.1, 10).tolist() for mean in [2.0, *means]]


def test_a_calm_stream_is_not_disturbed() -> None:
    calm = [found(segments(seed, [1.0] * 20)) for seed in range(STREAMS)]
    assert sum(map(bool, calm)) <= STREAMS / 100


def test_jumps_are_found_at_once() -> None:
    jumps = [found(segments(seed, [1.0] * 6 + [1.5] * 6)) for seed in range(STREAMS)]
    assert sum(7 in each for each in jumps) >= 0.99 * STREAMS


def test_slow_drift_adds_up_to_a_border() -> None:
    means = [*[1.0] * 5, *(1.0 + 0.04 * k for k in range(1, 8))]
    drifts = [found(segments(seed, means)) for seed in range(STREAMS)]
    late = [each[0] - 6 for each in drifts if each and each[0] >= 6]
    assert len(late) >= 0.99 * STREAMS
    assert np.mean(late) < 4


def stream(count: int, method: str = "auto", **further: Any) -> TaskSequence:
    """Segments of two classes, each pair twice, one class leaving and one coming at a time."""
    data = {**SETTINGS["data"], "nodes": 5, "samples": [8, 8], "precise": 0}
    settings = {**SETTINGS, "data": data, "training": {"rounds": 1, "evaluate_every": 0}}
    pairs = [sorted((number // 2 % 10, (number // 2 + 1) % 10)) for number in range(count)]
    tasks = [{"name": f"part-{n}", "classes": pair} for n, pair in enumerate(pairs)]
    table = {"tasks": tasks, "settings": settings, "platform": 8, "borders": "found", **further}
    return sequence_from(table, "stream").using(method)


def test_a_stream_without_borders(tmp_path: Path) -> None:
    """The prior stays where it was until the platform finds a border; a kill changes nothing."""
    sequence = stream(6)
    whole = run_sequence(sequence, [0], folder=tmp_path / "whole")
    assert whole[0]["borders"] == sorted(set(whole[0]["borders"]))
    stop = StopAfter(4)
    with pytest.raises(StopError):
        run_sequence(sequence, [0], folder=tmp_path / "cut", progress=lambda _: [stop])
    assert run_sequence(sequence, [0], folder=tmp_path / "cut") == whole
    assert models(tmp_path / "cut") == models(tmp_path / "whole")


def test_what_is_held_is_the_model_before_the_latest_border() -> None:
    sequence = stream(5)
    past = Past(draw(sequence, 0))
    for number in range(4):
        request = next_task(sequence, number, 0, past, None)
        assert (request.spec.algorithm.prior is None) == (number < 3)
        run = train_run(request)
        past.execution = past.execution or run_execution(run)
        past.keep(sequence, run.meta_model)
        if number == 2:
            past.borders.append(1)
            past.models[1] = run.meta_model
    prior = next_task(sequence, 4, 0, past, None).spec.algorithm.prior
    assert prior is not None
    assert all(torch.equal(prior.prior[n], leaf) for n, leaf in past.models[1].theta.items())
    look_for_border(4, past, 0)
    assert past.watch.begun


def run_execution(run: Any) -> Any:
    from fedmeta.studies.sequences.running import _execution

    return _execution(run.summary)


def bytes_kept(value: Any, seen: set[int]) -> int:
    """Of all tensors and numbers in what is kept, each once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, torch.nn.Module):
        return 0  # the network is code; its parameters are counted as θ
    if isinstance(value, dict):
        return sum(bytes_kept(each, seen) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(bytes_kept(each, seen) for each in value)
    if is_dataclass(value):
        return sum(bytes_kept(getattr(value, each.name), seen) for each in fields(value))
    return 8


def returning(count: int, method: str) -> TaskSequence:
    """A class after the other, and from the eleventh task on all of them again."""
    tasks: list[dict[str, Any]] = [{"name": f"t{n}", "classes": [n]} for n in range(10)]
    tasks += [{"name": f"r{n}", "again": f"t{n}"} for n in range(10)]
    settings = merged(
        [SETTINGS, {"data": {"nodes": 4, "classes_per_node": 1}, "training": {"rounds": 1}}]
    )
    table = {"tasks": tasks[:count], "settings": settings, "platform": 8}
    return sequence_from(table, "returning").using(method)


def platform_bytes(sequence: TaskSequence, every: int = 0) -> int:
    """What the platform needs to go on after a sequence: tensors, numbers, its samples.

    Args:
        sequence: what is learned.
        every: segments from border to border.
    """
    past = Past(draw(sequence, 0))
    for number in range(len(sequence.tasks)):
        run = train_run(next_task(sequence, number, 0, past, None))
        if every and number % every == 0 and number:
            past.borders.append(number - 1)
        past.keep(sequence, run.meta_model)
    about = [past.models, past.importance, past.diagonals, past.heads, past.borders[-1:]]
    if sequence.method.prior == "outputs":
        about.append(past.drawn.tasks[0].inputs[past.drawn.kept(number, sequence.platform)])
    return bytes_kept([*about, past.watch], set())


@pytest.mark.parametrize("method", ["auto", "outputs", "generated", "target"])
def test_memory_of_twenty_tasks_is_that_of_two(method: str) -> None:
    two, twenty = (platform_bytes(returning(count, method)) for count in (2, 20))
    assert 0 < twenty <= 1.1 * two


def test_memory_of_a_stream_does_not_grow_with_its_borders() -> None:
    few, many = (platform_bytes(stream(count), every=2) for count in (6, 20))
    assert 0 < many <= 1.1 * few


def test_a_task_returns_with_its_devices_and_samples() -> None:
    sequence = small("replay+euclidean")
    tasks = [{"name": t.name, "classes": list(t.classes)} for t in sequence.tasks]
    table = {"tasks": [*tasks, {"name": "back", "again": "0-1"}], "settings": SETTINGS, "replay": 4}
    longer = sequence_from(table, "returning").using("replay+euclidean")
    assert longer.tasks[3].classes == (0, 1)
    drawn = draw(longer, 0)
    assert drawn.tasks[3] is drawn.tasks[0]
    assert drawn.others_before(3) == drawn.tasks[1:3]
    assert len(drawn.joint().nodes) == 3 * len(drawn.tasks[0].nodes)
    (told,) = run_sequence(longer, [0])
    assert np.shape(told["accuracy"]) == (5, 4)
    columns = np.array(told["accuracy"])
    assert (columns[:, 0] == columns[:, 3]).all()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"again": "4-5"}, "which is no task before it"),
        ({"again": "0-1", "classes": [7]}, "has data of its own"),
    ],
)
def test_what_cannot_return(table: dict[str, Any], words: str) -> None:
    tasks = [{"name": "0-1", "classes": [0, 1]}, {"name": "x", **table}]
    with pytest.raises(SettingError, match=words):
        sequence_from({"tasks": tasks}, "mine")


def test_streams_know_no_tasks() -> None:
    with pytest.raises(SettingError, match="a device knows its task"):
        stream(3, "isolation")
    with pytest.raises(SettingError, match="borders"):
        stream(3, borders="guessed")
    trainer: Any = object()
    with pytest.raises(SettingError, match="asks sources for losses"):
        run_sequence(stream(3), trainer=trainer)
