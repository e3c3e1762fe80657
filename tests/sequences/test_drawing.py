from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Federation
from fedmeta.studies.sequences.declaration import read_sequence, sequence_from
from fedmeta.studies.sequences.drawing import draw
from sequences.problems import SETTINGS, small


def held(task: Federation) -> np.ndarray:
    return np.concatenate([np.r_[node.support, node.query] for node in task.nodes])


def test_no_sample_is_in_two_places() -> None:
    drawn = draw(small(), seed=3)
    everything = np.concatenate([*map(held, drawn.tasks), *drawn.platform])
    assert len(np.unique(everything)) == len(everything)
    trained_on = np.concatenate(
        [np.r_[n.support, n.query] for task in drawn.tasks for n in task.sources]
    )
    for task in drawn.tasks:
        for node in task.targets:
            assert len(node.precise) == 10
            assert not np.isin(node.precise, [*trained_on, *np.concatenate(drawn.platform)]).any()


def test_devices_stay_and_their_data_change() -> None:
    drawn = draw(small(), seed=0)
    names = [[(node.name, node.role) for node in task.nodes] for task in drawn.tasks]
    assert names[0] == names[1] == names[2]
    for task, classes in zip(drawn.tasks, ([0, 1], [2, 3], [4, 5]), strict=True):
        assert set(task.labels[held(task)].tolist()) == set(classes)
        assert task.task.outputs == 10
        assert task.inputs is drawn.tasks[0].inputs


def test_new_devices_have_names_of_their_own() -> None:
    sequence = small()
    tasks = (sequence.tasks[0], replace(sequence.tasks[1], devices="new"), sequence.tasks[2])
    first, second, _ = draw(replace(sequence, tasks=tasks), seed=0).tasks
    assert not {node.name for node in first.nodes} & {node.name for node in second.nodes}


def test_draws_are_fixed_by_the_seed_alone() -> None:
    one, again, other = draw(small(), 1), draw(small("replay"), 1), draw(small(), 2)
    assert all((held(a) == held(b)).all() for a, b in zip(one.tasks, again.tasks, strict=True))
    assert set(held(one.tasks[0])) != set(held(other.tasks[0]))


def test_held_out_devices_are_sources_and_the_same_in_all_tasks() -> None:
    drawn = draw(small(), 0)
    tuned = drawn.held_out(0.2, 0)
    targets = {node.name for task in drawn.tasks for node in task.targets}
    judges = [{node.name for node in task.targets} for task in tuned.tasks]
    assert judges[0] == judges[1] == judges[2]
    assert not targets & {node.name for task in tuned.tasks for node in task.nodes}
    assert all(len(node.precise) == 0 for task in tuned.tasks for node in task.nodes)


def test_joint_training_has_every_device_in_every_task() -> None:
    drawn = draw(small(), 0)
    joint = drawn.joint()
    assert len(joint.sources) == sum(len(task.sources) for task in drawn.tasks)
    assert sorted(held(joint)) == sorted(np.concatenate([held(task) for task in drawn.tasks]))


def people(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path / "people.npz"
    owners = np.repeat(["a", "b", "c", "d", "e", "f", "g"], 12)
    np.savez(file, x=rng.normal(size=(84, 3)), y=np.arange(84) % 3, who=owners)
    return file


def test_groups_of_people(tmp_path: Path) -> None:
    data = {"name": people(tmp_path).name, "folder": str(tmp_path), "node": "who"}
    tasks = [{"name": "one", "nodes": ["a", "b", "c"]}, {"name": "two", "nodes": ["d", "e", "f"]}]
    drawn = draw(sequence_from({"tasks": tasks, "settings": {"data": data}}, "people"), 0)
    assert [[node.name for node in task.nodes] for task in drawn.tasks] == [
        list("abc"),
        list("def"),
    ]
    spare = np.arange(72, 84)  # whose owner is in no task
    assert all(set(each) <= set(spare) and len(each) > 0 for each in drawn.platform)


def test_tasks_may_have_files_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("may", "june"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(60, 3)), y=np.arange(60) % 3)
    tasks: list[dict[str, Any]] = [
        {"name": name, "classes": [0, 1, 2], "data": {"name": str(tmp_path / f"{name}.npz")}}
        for name in ("may", "june")
    ]
    settings = {"data": {"nodes": 4, "samples": [6, 8]}}
    drawn = draw(sequence_from({"tasks": tasks, "settings": settings}, "months"), 0)
    assert max(held(drawn.tasks[0])) < 60 <= min(held(drawn.tasks[1]))
    np.savez(tmp_path / "july.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 3)
    tasks[1]["data"] = {"name": str(tmp_path / "july.npz")}
    with pytest.raises(DataError, match="other classes or shapes"):
        draw(sequence_from({"tasks": tasks, "settings": settings}, "months"), 1)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"name": "x", "classes": [11]}, "task 'x' has class 11, which digits has not"),
        ({"name": "x", "nodes": ["a"]}, "digits does not say whose samples"),
    ],
)
def test_what_the_data_do_not_have(task: dict[str, object], words: str) -> None:
    table = {"tasks": [{"name": "first", "classes": [0, 1]}, task], "settings": SETTINGS}
    with pytest.raises(DataError, match=words):
        draw(sequence_from(table, "mine"), 0)


def test_the_protocol_of_the_field() -> None:
    """Ten clients and five further devices; shares of a task's classes are Dirichlet."""
    drawn = draw(read_sequence("class-incremental-digits"), 0)
    assert drawn.classes == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    for task, classes in zip(drawn.tasks, drawn.classes, strict=True):
        assert (len(task.sources), len(task.targets)) == (10, 5)
        parts = [task.labels[np.r_[node.support, node.query]] for node in task.nodes]
        shares = [float(np.mean(part == classes[0])) for part in parts]
        assert set(np.unique(task.labels[held(task)])) == set(classes)
        assert min(shares) < 0.25
        assert max(shares) > 0.75
