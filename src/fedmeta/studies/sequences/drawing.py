"""Who holds what in every task of a sequence: one pool, no sample in two tasks.

All tasks share the full head: classes keep their numbers, nodes hold only some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError, nearest
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data import DataSettings, Federation, Node, Pool, deal_out, read
from fedmeta.data.federation import Positions, Role
from fedmeta.data.few_classes import holds_few_classes
from fedmeta.data.loading import without_gaps
from fedmeta.data.readers.registry import BUILT_IN
from fedmeta.data.readers.search_folders import places
from fedmeta.data.settings import READING
from fedmeta.data.splitting import equal_parts, with_precise
from fedmeta.studies.sequences.declaration import TaskSequence, TaskSettings


@dataclass(frozen=True, eq=False)
class Drawn:
    """A sequence for one seed.

    Args:
        tasks: the federation of each task, all over the same pool.
        platform: for each task the samples that the platform has of it, which no node holds. Their
            labels are not looked at.
        classes: the numbers of each task's classes.
    """

    tasks: Sequence[Federation]
    platform: Sequence[Positions]
    classes: Sequence[tuple[int, ...]]

    def known(self, tasks: Iterable[int]) -> tuple[int, ...]:
        """The classes of some tasks together."""
        return tuple(sorted({each for number in tasks for each in self.classes[number]}))

    def kept(self, number: int, count: int) -> Positions:
        """What the platform still has of the tasks before one: `count` samples, tasks alike."""
        each = dict.fromkeys(tuple(rows.tolist()) for rows in self.platform[:number])
        counts = equal_parts(np.array([len(rows) for rows in each], np.int64), count)
        parts = [rows[:share] for rows, share in zip(each, counts.tolist(), strict=True)]
        return np.array([row for part in parts for row in part], np.int64)

    def first(self, number: int) -> int:
        """The number of a task, or that under which it was there for the first time."""
        return next(n for n, each in enumerate(self.tasks) if each is self.tasks[number])

    def others_before(self, number: int) -> list[Federation]:
        """The tasks before one, once each, without itself if it has been there already."""
        once = sorted(set(map(self.first, range(number))) - {self.first(number)})
        return [self.tasks[each] for each in once]

    def joint(self) -> Federation:
        """All tasks at once: every device is a node for each of its tasks."""
        nodes = [
            replace(node, name=in_task(number, node.name))
            for number, task in enumerate(self.tasks)
            if self.first(number) == number
            for node in task.nodes
        ]
        return self.tasks[0].with_nodes(nodes)

    def judges(self, numbers: Sequence[int], role: Role = "target") -> Federation:
        """The nodes of a role in some tasks, all as targets, to be evaluated at once.

        They are called as in the `first` of tasks that return.
        """
        nodes = [
            replace(node, name=in_task(number, node.name), role="target")
            for number in sorted(set(map(self.first, numbers)))
            for node in self.tasks[number].nodes
            if node.role == role
        ]
        return self.tasks[0].with_nodes(nodes)

    def held_out(self, share: float, seed: int) -> Drawn:
        """The same without targets: a share of the sources plays target, what tuning may look at.

        The devices that are held out are the same in all tasks where the tasks' devices are.
        """
        held = {id(task): task.hold_out(share, seed) for task in self.tasks}
        return replace(self, tasks=[held[id(task)] for task in self.tasks])


def in_task(number: int, node: str) -> str:
    """What a node is called where those of several tasks stand side by side."""
    return f"task-{number + 1}/{node}"


def draw(sequence: TaskSequence, seed: int) -> Drawn:
    """The nodes of all tasks, each task from what those before it have left.

    Args:
        sequence: its tasks.
        seed: of everything that is drawn. Devices that stay have the same role in every task.
    """
    data = [sequence.data_of_task(number, seed) for number in range(len(sequence.tasks))]
    drawn_anew = any(each.name == "sinusoid" for each in data)
    pool, offsets = _joined(tuple(map(_reading, data)), seed if drawn_anew else 0)
    free = np.ones(len(pool.labels), np.bool_)
    groups: list[list[Node]] = []
    wanted: list[npt.NDArray[np.bool_]] = []
    again = [sequence.number_of(task.again) for task in sequence.tasks]
    for number, settings in enumerate(data):
        task, (start, stop) = sequence.tasks[number], offsets[number]
        mine = np.zeros_like(free)
        mine[start:stop] = True
        mine &= _of_classes(pool, task)
        wanted.append(mine)
        if (first := again[number]) is not None:
            groups.append(groups[first])
            continue
        groups.append(_nodes(pool, task, settings, free & mine, seed))
        for node in groups[-1]:
            free[node.support] = free[node.query] = False
    platform = [
        _unlabelled(pool, free & mine, sequence.platform, number, seed)
        for number, mine in enumerate(wanted)
    ]
    platform = [each if n is None else platform[n] for n, each in zip(again, platform, strict=True)]
    groups = _judged(groups, platform, pool, [each.precise for each in data], seed)
    tasks = [Federation(pool.inputs, pool.labels, pool.task, g, pool.name) for g in groups]
    tasks = [each if n is None else tasks[n] for n, each in zip(again, tasks, strict=True)]
    # All of a sequence adapts in one way, whatever devices hold besides in later tasks.
    few = holds_few_classes(tasks[0])
    alike = {id(task): replace(task, few_classes=few) for task in tasks}
    tasks = [alike[id(task)] for task in tasks]
    return Drawn(tasks, platform, [_numbers(pool, task) for task in sequence.tasks])


@lru_cache(maxsize=2)
def _joined(names: tuple[DataSettings, ...], seed: int) -> tuple[Pool, list[tuple[int, int]]]:
    """The samples of all tasks as one pool, and where those of each task lie in it."""
    pools = {name: _plain(read(name, seed)) for name in dict.fromkeys(names)}
    first = pools[names[0]]
    ends = dict(zip(pools, np.cumsum([len(each.labels) for each in pools.values()]), strict=True))
    offsets = [(int(ends[n]) - len(pools[n].labels), int(ends[n])) for n in names]
    if len(pools) == 1:
        return first, offsets
    for other in pools.values():
        shapes = other.inputs.shape[1:], other.features
        if other.task != first.task or shapes != (first.inputs.shape[1:], first.features):
            raise DataError(
                f"tasks have data of other classes or shapes ({first.name} and {other.name})",
                "all tasks of a sequence share one model: give data with the same classes",
            )
    owners = [each.owners for each in pools.values() if each.owners is not None]
    times = [each.times for each in pools.values() if each.times is not None]
    whole = first._replace(
        inputs=np.concatenate([each.inputs for each in pools.values()]),
        labels=np.concatenate([each.labels for each in pools.values()]),
        owners=np.concatenate(owners) if len(owners) == len(pools) else None,
        times=np.concatenate(times) if len(times) == len(pools) else None,
        name=" and ".join(dict.fromkeys(each.name for each in pools.values())),
    )
    return whole, offsets


def _plain(pool: Pool) -> Pool:
    """A pool that can be joined to others: owners by name, gaps filled with means over all of it.

    Nobody knows yet who is a source: tasks draw their nodes one after the other.
    """
    return without_gaps(pool, ())._replace(owners=pool.owner_texts, owner_names=())


def _reading(data: DataSettings) -> DataSettings:
    """The settings that decide what is read, alone; a file is looked for where data sets lie."""
    name = data.name
    if name not in BUILT_IN and not Path(name).exists():
        found = (place / name for place in places(data.folder) if (place / name).is_file())
        name = str(next(found, name))
    drawn = {"nodes": data.nodes, "samples": data.samples} if name == "sinusoid" else {}
    columns = {each: getattr(data, each) for each in (*READING, "task", "node")}
    return DataSettings(name, data.folder, **columns, **drawn)  # type: ignore[arg-type]


def _of_classes(pool: Pool, task: TaskSettings) -> npt.NDArray[np.bool_]:
    """Which samples are of the task's classes."""
    if not task.classes:
        return np.ones(len(pool.labels), np.bool_)
    return np.isin(pool.labels, _numbers(pool, task))


def _numbers(pool: Pool, task: TaskSettings) -> tuple[int, ...]:
    """The numbers of the task's classes."""
    names = list(pool.class_names)
    if not task.classes:
        return tuple(range(len(names)))
    for each in task.classes:
        known = each in names if isinstance(each, str) else 0 <= each < len(names)
        if not known:
            raise DataError(
                f"task {task.name!r} has class {each!r}, which {pool.name} has not",
                nearest(str(each), names),
            )
    return tuple(names.index(each) if isinstance(each, str) else each for each in task.classes)


def _nodes(
    pool: Pool, task: TaskSettings, data: DataSettings, free: npt.NDArray[np.bool_], seed: int
) -> list[Node]:
    """The nodes of one task, drawn from the samples that are free."""
    if task.nodes:
        if pool.owners is None:
            raise DataError(
                f"task {task.name!r} names its nodes, but {pool.name} does not say whose samples "
                "they are",
                "set data.node to the column that does",
            )
        known = sorted(set(pool.owners.astype(str).tolist()))
        for name in task.nodes:
            if name not in known:
                raise DataError(
                    f"task {task.name!r} has node {name!r}, which {pool.name} has not",
                    nearest(name, known),
                )
        free = free & np.isin(pool.owners.astype(str), task.nodes)
    held = np.flatnonzero(free)
    if len(held) == 0:
        raise DataError(
            f"no samples are left for task {task.name!r}", "give it classes or nodes of its own"
        )
    # Who holds what depends on labels and owners alone; the inputs stay where they are.
    owners, times = (None if each is None else each[held] for each in (pool.owners, pool.times))
    some = pool._replace(
        inputs=held[:, None], labels=pool.labels[held], owners=owners, times=times
    )._replace(features=(), encoding=None)
    drawn = deal_out(some, replace(data, precise=0), seed)
    named = data.resolved().partition == "column"
    prefix = "" if task.devices == "same" or named else f"{task.name}-"
    return [
        Node(prefix + node.name, node.role, held[node.support], held[node.query])
        for node in drawn.nodes
    ]


def _unlabelled(
    pool: Pool, free: npt.NDArray[np.bool_], count: int, number: int, seed: int
) -> Positions:
    """Samples for the platform, among those that nobody holds: up to `count`, classes alike.

    Classes take turns, so that a part from the front has them alike as well.
    """
    rng = generator(seed, DataPurpose.PLATFORM, str(number))
    if not pool.class_names:
        return rng.permutation(np.flatnonzero(free))[:count].astype(np.int64)
    stock = [np.flatnonzero(free & (pool.labels == label)) for label in np.unique(pool.labels)]
    takes = equal_parts(np.array([len(each) for each in stock]), count)
    parts = [rng.permutation(each)[:take] for each, take in zip(stock, takes, strict=True)]
    turns = np.concatenate([np.arange(take) for take in takes])
    return np.concatenate(parts)[np.argsort(turns, kind="stable")].astype(np.int64)


def _judged(
    groups: list[list[Node]],
    platform: Sequence[Positions],
    pool: Pool,
    sizes: Sequence[int],
    seed: int,
) -> list[list[Node]]:
    """The nodes with their precise sets, from samples that no source and no platform has."""
    if not any(sizes):
        return groups
    taken = np.concatenate([*platform, np.empty(0, np.int64)])
    kept = Node("platform", "source", taken, np.empty(0, np.int64))
    sources = [node for group in groups for node in group if node.role == "source"]
    result = []
    for group, size in zip(groups, sizes, strict=True):
        own = [node for node in group if node.role == "target"]
        judged, _ = with_precise([*sources, kept, *own], pool.labels, size, seed)
        precise = {node.name: node for node in judged if node.role == "target"}
        result.append(
            [precise[node.name] if node.role == "target" else node for node in group]
            if size > 0
            else group
        )
    return result
