"""A task sequence as people write it: a TOML file, or the same in Python.

title = "Two halves of the digits"
method = "replay+euclidean"            see `fedmeta.studies.sequences.methods`
strength = { euclidean = 0.1 }         λ of each prior ("auto": a factor)

[settings]                             as in a settings file; all tasks share it
data.name = "digits"
training.rounds = 50

[[tasks]]
name = "low"
classes = [0, 1, 2, 3, 4]

[[tasks]]
name = "high"
classes = [5, 6, 7, 8, 9]
rounds = 80

Instead of tasks `split = { classes = 100, tasks = 10 }` gives each as many classes, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from fedmeta.config.spec import RunSpec, layered
from fedmeta.config.toml_files import Table, merged, read_toml, subtable
from fedmeta.core.errors import SettingError, nearest, require, require_choice, require_whole
from fedmeta.core.serialization import LATER, deserialize
from fedmeta.data.settings import DataSettings
from fedmeta.studies.gate import LIMIT, check_limit
from fedmeta.studies.sequences.methods import AUTO, PRIORS, RIVALS, Method

Borders = Literal["given", "found"]
GIVEN: Borders = "given"
FOUND: Borders = "found"
_READY = files(__package__).joinpath("ready")
_OF_A_TASK = ("prior", "init", "importance")  # settings that a sequence sets for every task itself


@dataclass(frozen=True)
class TaskSettings:
    """One task of a sequence.

    Args:
        name: like no other in the sequence.
        classes: numbers or names of its classes; none: all of its data.
        nodes: names of its nodes, where the data say whose samples they are; none: all.
        devices: "same": the devices of the other tasks, whose data have changed; "new": others.
            For nodes that are drawn; those that the data name are whoever they are.
        rounds: T; None: as the settings say.
        after: the task whose meta-model it starts from and is held near; None: the one before it.
        again: an earlier task that returns: the same devices with the same samples.
        data: settings of its data, where they differ from the sequence's.
    """

    name: str
    classes: tuple[int | str, ...] = ()
    nodes: tuple[str, ...] = ()
    devices: Literal["same", "new"] = "same"
    rounds: int | None = None
    after: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    again: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        plain = re.fullmatch(r"[\w.-]*\w", self.name) is not None
        require(plain, "the name of a task", self.name, "letters, digits, dots and dashes")
        require_choice("devices", self.devices, ("same", "new"))
        if self.rounds is not None:
            require_whole(f"rounds of task {self.name!r}", self.rounds, 1)


@dataclass(frozen=True)
class TaskSequence:
    """Tasks that are learned one after the other.

    Args:
        name: what it is called.
        tasks: at least two, in their order.
        settings: a settings table as `fedmeta.config.settings.layered` takes it, without a prior.
        method: what is done against forgetting.
        strength: λ ≥ 0 of each prior, by its name; of "auto" what its own λ is multiplied by.
        replay: how many past samples a device keeps.
        platform: how many unlabelled samples the platform keeps, earlier tasks alike ("outputs").
        title: for people.
        limit: points that an earlier task may fall by without blocking an update (`gating`).
        borders: "given": the model before a task is what earlier ones have taught. "found": the
            platform is not told where the data change, and looks for it (`drift`); tasks are
            segments of a stream and may share classes.

    Example:
        >>> halves = [TaskSettings("low", (0, 1, 2)), TaskSettings("high", (3, 4, 5))]
        >>> [task.after for task in TaskSequence("halves", tuple(halves)).tasks]
        [None, 'low']
    """

    name: str
    tasks: tuple[TaskSettings, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    method: Method = field(default_factory=lambda: Method(AUTO))
    strength: Mapping[str, float] = field(default_factory=dict)
    replay: int = 40
    platform: int = 100
    title: str = ""
    limit: float = field(default=LIMIT, metadata=LATER)
    borders: Borders = field(default=GIVEN, metadata=LATER)

    def __post_init__(self) -> None:
        require(len(self.tasks) >= 2, "tasks", [t.name for t in self.tasks], "at least two")
        _check_names(self.tasks)
        require_choice("borders", self.borders, (GIVEN, FOUND))
        object.__setattr__(self, "tasks", _returning(_following(self.tasks)))
        if self.borders == GIVEN:
            _check_classes(self.tasks)
        elif self.method.isolation:
            raise SettingError(
                "borders are found, but under isolation a device knows its task",
                "use another method, or give the borders",
            )
        for kind, value in self.strength.items():
            require_choice("strength", kind, (AUTO, *PRIORS, *RIVALS))
            finite = isinstance(value, int | float) and 0 <= value < float("inf")
            require(finite, f"strength.{kind} λ", value, "a number of at least 0")
        require_whole("replay", self.replay, 1)
        require_whole("platform", self.platform, 1)
        check_limit(self.limit)
        for name in _OF_A_TASK:
            if name in self.settings:
                raise SettingError(
                    f"the settings of a sequence have {name!r}",
                    "leave it out: every task takes the model before it",
                )

    def number_of(self, name: str | None) -> int | None:
        """The place of a task among all, from 0; None of no task."""
        return None if name is None else [each.name for each in self.tasks].index(name)

    @property
    def pull(self) -> float:
        """λ, the strength of the method's prior, or its factor for "auto"; 0 without one."""
        kind = self.method.prior
        return 0.0 if kind is None else float(self.strength.get(kind, 1.0))

    def of_task(self, number: int, seed: int) -> RunSpec:
        """The settings of one task for one seed."""
        return RunSpec.from_dict(self.table_of_task(number, seed))

    def data_of_task(self, number: int, seed: int) -> DataSettings:
        """The data of one task for one seed; code that the settings may name is left alone."""
        table = self.table_of_task(number, seed)
        return deserialize(DataSettings, subtable(table, "data"), "data")

    def table_of_task(self, number: int, seed: int) -> Table:
        """The same as a table."""
        task = self.tasks[number]
        own: Table = {"data": dict(task.data), "training": {"seed": seed}}
        if task.rounds is not None:
            own["training"]["rounds"] = task.rounds
        if self.method.rival is not None:
            own["algorithm"] = self.method.rival
        return layered(merged([self.settings, own]), {})

    def using(self, method: str, strength: float | None = None) -> TaskSequence:
        """The same sequence with another method and, if given, another λ."""
        parsed, strengths = Method.parse(method), dict(self.strength)
        if strength is not None:
            if parsed.prior is None:
                raise SettingError(
                    f"a strength λ is given, but method {method!r} has no prior",
                    f"leave it out, or use {' or '.join((*PRIORS, *RIVALS))}",
                )
            strengths[parsed.prior] = strength
        return replace(self, method=parsed, strength=strengths)


def ready() -> list[str]:
    """The names of the sequences that come along.

    Example:
        >>> "split-cifar10" in ready()
        True
    """
    return sorted(Path(each.name).stem for each in _READY.iterdir() if each.name.endswith(".toml"))


def read_sequence(name: str, further: Mapping[str, Any] | None = None) -> TaskSequence:
    """A sequence that comes along, by its name, or the one in a TOML file.

    Args:
        name: of a ready sequence, or a path.
        further: settings on top of those in the file.

    Example:
        >>> [task.name for task in read_sequence("digits").tasks]
        ['0-1', '2-3', '4-5', '6-7', '8-9']
    """
    path = Path(name)
    if name in ready():
        table = read_toml(Path(str(_READY.joinpath(f"{name}.toml"))))
    elif path.suffix == ".toml" or path.exists():
        table = read_toml(path)
    else:
        raise SettingError(
            f"there is no sequence {name!r}", f"{nearest(name, ready())}; or give a TOML file"
        )
    return sequence_from(table, path.stem, further)


def sequence_from(
    table: Mapping[str, Any], name: str, further: Mapping[str, Any] | None = None
) -> TaskSequence:
    """A sequence from a table as its file has it, everything checked.

    Args:
        table: the file's content.
        name: what to call it.
        further: settings on top of those in the table.
    """
    if "split" in table:
        table = _split(table, name)
    known = [*(each.name for each in fields(TaskSequence) if each.name != "name"), "split"]
    for key in table:
        if key not in known:
            raise SettingError(f"sequence {name} has no {key!r}", nearest(key, known))
    tasks = table.get("tasks", [])
    if not isinstance(tasks, list | tuple) or not all(isinstance(t, Mapping) for t in tasks):
        raise SettingError(f"tasks of {name} is {tasks!r}", "write a table [[tasks]] for each")
    simple = {
        key: table[key]
        for key in ("replay", "platform", "title", "limit", "borders")
        if key in table
    }
    return TaskSequence(
        name,
        tuple(_task(each, f"{name}.tasks[{number}]") for number, each in enumerate(tasks)),
        merged([subtable(table, "settings"), further or {}]),
        Method.parse(table.get("method", AUTO)),
        subtable(table, "strength"),
        **simple,
    )


def _split(table: Mapping[str, Any], name: str) -> Table:
    """The table with the tasks that its `split` stands for."""
    if "tasks" in table:
        raise SettingError(f"{name} has both split and tasks", "leave one out")
    split = subtable(table, "split")
    if set(split) != {"classes", "tasks"}:
        raise SettingError(
            f"split of {name} is {dict(split)!r}", "write { classes = 100, tasks = 10 }"
        )
    for key, value in split.items():
        require_whole(f"split.{key}", value, 2)
    classes, tasks = split["classes"], split["tasks"]
    require(classes % tasks == 0, "split.classes", classes, f"a multiple of the {tasks} tasks")
    each = classes // tasks
    parts = [range(first, first + each) for first in range(0, classes, each)]
    listed = [{"name": f"{part[0]}-{part[-1]}", "classes": list(part)} for part in parts]
    return {**{key: value for key, value in table.items() if key != "split"}, "tasks": listed}


def _task(table: Mapping[str, Any], where: str) -> TaskSettings:
    own = subtable(table, "data")
    plain = {key: value for key, value in table.items() if key != "data"}
    return replace(deserialize(TaskSettings, plain, where), data=own)


def _check_names(tasks: tuple[TaskSettings, ...]) -> None:
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingError(f"two tasks are called {twice!r}", "give every task its own name")


def _check_classes(tasks: tuple[TaskSettings, ...]) -> None:
    """A class belongs to one task, unless the tasks have nodes or data of their own."""
    for one, other in combinations(tasks, 2):
        if other.again is not None:
            continue
        common = [each for each in one.classes if each in other.classes]
        apart = one.nodes or other.nodes or one.data.get("name") != other.data.get("name")
        if common and not apart:
            raise SettingError(
                f"tasks {one.name!r} and {other.name!r} both have class "
                f"{', '.join(map(str, common))}",
                "give every class to one task",
            )


def _returning(tasks: tuple[TaskSettings, ...]) -> tuple[TaskSettings, ...]:
    """The tasks, each that returns with what it had."""
    found: dict[str, TaskSettings] = {}
    for task in tasks:
        if (first := task.again) is not None:
            if first not in found:
                raise SettingError(
                    f"task {task.name!r} is {first!r} again, which is no task before it",
                    nearest(first, list(found)),
                )
            if task.classes or task.nodes or task.data:
                known = found[first]
                same = (task.classes, task.nodes, task.data) == (
                    *(known.classes, known.nodes),
                    known.data,
                )
                if not same:
                    raise SettingError(
                        f"task {task.name!r} is {first!r} again and has data of its own",
                        "leave its classes, nodes and data out",
                    )
            old = found[first]
            named = old.again or first
            task = replace(task, classes=old.classes, nodes=old.nodes, data=old.data, again=named)
        found[task.name] = task
    return tuple(found.values())


def _following(tasks: tuple[TaskSettings, ...]) -> tuple[TaskSettings, ...]:
    """The tasks, each with the one whose model it takes; refuses unknown ones and cycles."""
    names = [task.name for task in tasks]
    followed = []
    for number, task in enumerate(tasks):
        after = task.after
        if after is None:
            after = names[number - 1] if number else None
        elif after not in names:
            raise SettingError(
                f"task {task.name!r} comes after {after!r}, which is no task", nearest(after, names)
            )
        elif names.index(after) >= number:
            whom = "itself" if after == task.name else f"{after!r}, which comes later: a cycle"
            raise SettingError(
                f"task {task.name!r} comes after {whom}", "name a task that stands before it"
            )
        followed.append(replace(task, after=after))
    return tuple(followed)
