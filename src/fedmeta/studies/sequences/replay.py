"""Experience replay: a small reservoir of past samples that every device keeps for itself.

The samples never leave the device. In a later task it learns from them too, so what it contributes
to the sum speaks for its past as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Federation, Node, Positions
from fedmeta.data.splitting import split
from fedmeta.studies.sequences.drawing import in_task


def reservoir(seen: Sequence[Positions], capacity: int, rng: np.random.Generator) -> Positions:
    """A uniform sample of all that has passed by, kept in constant room (Vitter's algorithm R).

    Args:
        seen: what the device held, task after task.
        capacity: how many samples it keeps.
        rng: the device's own random stream.

    Example:
        >>> reservoir([np.arange(3), np.arange(3, 9)], 4, np.random.default_rng(0)).tolist()
        [0, 1, 8, 6]

    Vitter, Random sampling with a reservoir, ACM Transactions on Mathematical Software 1985.
    """
    kept: list[int] = []
    for number, sample in enumerate(np.concatenate(seen).tolist()):
        if len(kept) < capacity:
            kept.append(sample)
        elif (place := int(rng.integers(number + 1))) < capacity:
            kept[place] = sample
    return np.array(kept, np.int64)


def with_replay(
    task: Federation, earlier: Sequence[Federation], capacity: int, share: float, seed: int
) -> Federation:
    """The task, and beside every source a node for each earlier task it still has samples of.

    A device adapts in one task at a time, so its past is not mixed into its sets: what it kept of
    a task is split into support and query by itself, and F gets a term for it, weighed by its
    samples like any other. All of them are computed on the device.

    Args:
        task: the federation to be trained on.
        earlier: those before it, over the same pool.
        capacity: samples that a device keeps in all.
        share: of the kept samples that go to the support set.
        seed: of the whole sequence; a device draws from a stream of its own.
    """
    strata = task.labels if task.task.kind == "classification" else np.zeros(len(task.labels))
    past = []
    for node in task.sources if earlier else ():
        before = [each.node(node.name) for each in earlier]
        seen = [np.concatenate([each.support, each.query]) for each in before]
        rng = generator(seed, DataPurpose.REPLAY, node.name)
        kept = reservoir(seen, capacity, rng)
        for number, held in enumerate(seen):
            mine = kept[np.isin(kept, held)]
            if len(mine) >= 2:  # a single sample cannot be adapted to and judged on
                ((support, query),) = split([mine], strata, share, rng)
                past.append(Node(in_task(number, node.name), "source", support, query))
    return task.with_nodes([*task.nodes, *past])


def require_same_devices(tasks: Sequence[Federation], names: Sequence[str], method: str) -> None:
    """Refuse a method that needs devices that stay, where a task has others.

    Args:
        tasks: the federations of all tasks.
        names: of the tasks.
        method: for the words of the error.
    """
    first = {(node.name, node.role) for node in tasks[0].nodes}
    for name, task in zip(names, tasks, strict=True):
        if {(node.name, node.role) for node in task.nodes} != first:
            raise DataError(
                f"method {method!r} needs devices that stay, but task {name!r} has other nodes "
                f"than task {names[0]!r}",
                'use a method without replay and isolation, or tasks with devices = "same"',
            )
