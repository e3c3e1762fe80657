"""Experience replay: a small reservoir of past samples that every device keeps for itself.

The samples never leave the device. In a later task they are part of its support and query sets, so
what it contributes to the sum speaks for its past as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmeta.data.federation import Federation, Node, Positions
from fedmeta.data.seeding import stream
from fedmeta.data.splitting import split
from fedmeta.errors import DataError


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
    """The task with every source's reservoir of the earlier ones mixed into its sets.

    Args:
        task: the federation to be trained on.
        earlier: those before it, over the same pool.
        capacity: samples that a device keeps in all.
        share: of the kept samples that go to the support set.
        seed: of the whole sequence; a device draws from a stream of its own.
    """
    if not earlier:
        return task

    def mixed(node: Node) -> Node:
        past = [each.node(node.name) for each in earlier]
        seen = [np.concatenate([one.support, one.query]) for one in past]
        kept = reservoir(seen, capacity, stream(seed, "replay", node.name))
        strata = task.labels if task.task.kind == "classification" else np.zeros(len(task.labels))
        ((support, query),) = split([kept], strata, share, stream(seed, "replay", node.name))
        return replace(
            node,
            support=np.concatenate([node.support, support]),
            query=np.concatenate([node.query, query]),
        )

    return task.with_nodes(mixed(n) if n.role == "source" else n for n in task.nodes)


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
