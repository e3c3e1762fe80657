from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmeta.core.errors import SettingError
from fedmeta.studies.sequences import Method, TaskSequence, TaskSettings, read_sequence, ready
from fedmeta.studies.sequences.declaration import sequence_from

TASKS: list[dict[str, Any]] = [
    {"name": "low", "classes": [0, 1]},
    {"name": "high", "classes": [2, 3], "rounds": 7},
]


def test_file_and_python_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        title = "Mine"
        method = "replay+euclidean"
        strength = { euclidean = 0.5 }
        replay = 5

        [settings]
        data.name = "digits"
        training.rounds = 3

        [[tasks]]
        name = "low"
        classes = [0, 1]

        [[tasks]]
        name = "high"
        classes = [2, 3]
        rounds = 7
        """
    )
    read = read_sequence(str(file))
    tasks = TaskSettings("low", (0, 1)), TaskSettings("high", (2, 3), rounds=7)
    settings = {"data": {"name": "digits"}, "training": {"rounds": 3}}
    written = TaskSequence(
        "mine",
        tasks,
        settings,
        Method.parse("replay+euclidean"),
        {"euclidean": 0.5},
        5,
        title="Mine",
    )
    assert read == written
    assert [read.of_task(number, 4).training.rounds for number in (0, 1)] == [3, 7]
    assert read.of_task(1, 4).training.seed == 4
    assert read.pull == 0.5
    assert read.using("none").pull == 0


@pytest.mark.parametrize("name", ready())
def test_ready_sequences_hold_together(name: str) -> None:
    sequence = read_sequence(name)
    for number in range(len(sequence.tasks)):
        assert sequence.of_task(number, 0).training.rounds > 0
    known = {kind for kind, value in sequence.strength.items() if value > 0}
    assert known >= {"euclidean", "fisher", "outputs"}


def test_what_is_ready() -> None:
    assert ready() == [
        "class-incremental-cifar100-10",
        "class-incremental-cifar100-5",
        "class-incremental-digits",
        "digits",
        "hapt-people",
        "split-cifar10",
        "split-cifar10-few",
        "split-cifar100",
        "split-fashion-mnist",
    ]
    assert len(read_sequence("split-cifar10").tasks) == 5
    hundred = read_sequence("split-cifar100").tasks
    assert [len(task.classes) for task in hundred] == [10] * 10
    people = [name for task in read_sequence("hapt-people").tasks for name in task.nodes]
    assert len(set(people)) == len(people) == 28


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"tasks": [*TASKS, {"name": "x", "after": "lov"}]}, "'lov', which is no task: did you"),
        ({"tasks": [*TASKS, {"name": "x", "after": "x"}]}, "'x' comes after itself"),
        ({"tasks": [{"name": "x", "after": "high"}, *TASKS]}, "'high', which comes later: a cycle"),
        (
            {"tasks": [*TASKS, {"name": "x", "classes": [9, 3]}]},
            "tasks 'high' and 'x' both have class 3",
        ),
        ({"tasks": TASKS, "strength": {"euclidean": -1.0}}, "strength.euclidean λ is -1.0"),
        ({"tasks": TASKS, "strength": {"euclid": 1.0}}, "strength is 'euclid'"),
        ({"tasks": TASKS, "method": "ewc"}, "method 'ewc' is unknown"),
        ({"tasks": TASKS, "method": "euclidean+fisher"}, "at most one prior"),
        ({"tasks": TASKS, "method": "none+replay"}, "joins 'none' with others"),
        ({"tasks": TASKS, "method": "isolation+outputs"}, "earlier tasks have other heads"),
        ({"tasks": TASKS, "split": {"classes": 4, "tasks": 2}}, "both split and tasks"),
        ({"split": {"classes": 10, "tasks": 3}}, "a multiple of the 3 tasks"),
        ({"split": {"classes": 10}}, "split of mine is"),
        ({"tasks": TASKS[:1]}, "give at least two"),
        ({"tasks": [*TASKS, TASKS[0]]}, "two tasks are called 'low'"),
        ({"tasks": [*TASKS, {"name": "a/b"}]}, "the name of a task is 'a/b'"),
        ({"tasks": [*TASKS, {"name": "x", "clases": [4]}]}, "has no setting 'clases': did you"),
        ({"tasks": "low"}, "write a table"),
        ({"tasks": TASKS, "replay": 0}, "replay is 0"),
        ({"tasks": TASKS, "wrong": 0}, "has no 'wrong'"),
        ({"tasks": TASKS, "settings": {"prior": {"strength": 1.0}}}, "have 'prior'"),
    ],
)
def test_bad_input_is_told_in_one_line(table: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match="(?s)" + words.replace("'", "['\"]")):
        sequence_from(table, "mine")


def test_strength_without_a_prior_is_refused() -> None:
    sequence = sequence_from({"tasks": TASKS}, "mine")
    assert sequence.using("fisher", 3.0).pull == 3.0
    with pytest.raises(SettingError, match="'replay' has no prior"):
        sequence.using("replay", 1.0)
    with pytest.raises(SettingError, match="there is no sequence 'digit'"):
        read_sequence("digit")


def test_methods_and_their_names() -> None:
    for name in ("none", "euclidean", "replay+euclidean", "isolation+fisher", "joint"):
        assert str(Method.parse(name)) == name
    assert Method.parse(["euclidean", "replay"]) == Method.parse("replay+euclidean")
