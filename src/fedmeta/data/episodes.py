"""Few-shot episodes: every node is a small classification task over classes of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Federation, Node, Task, node_names
from fedmeta.data.partition import Counts, class_counts, deal, fit
from fedmeta.data.pool import Pool
from fedmeta.data.settings import DataSettings
from fedmeta.data.splitting import choose_targets

_WAYS, _QUERIES = 5, 5  # where nothing else is asked for


def draw_episodes(pool: Pool, settings: DataSettings, seed: int) -> Federation:
    """N-way K-shot episodes: every node is a small classification task over classes of its own.

    One node per episode: N classes in random order are its classes 0 … N−1.

    Sources and targets draw from different classes where there are enough of them (a
    `target_share` of the classes, at least N on each side); a note says if there were not.
    No sample is in two episodes; labels of samples in none are −1.

    Args:
        pool: the samples.
        settings: `nodes` episodes of `classes_per_node` classes (see `DataSettings`) with `shots`
            support and `queries` query samples of each class.
        seed: same pool, settings and seed: same episodes.
    """
    available = class_counts(pool)
    names, rng = node_names(settings.nodes), generator(seed, DataPurpose.SAMPLES)
    is_target = choose_targets(names, settings, generator(seed, DataPurpose.ROLES))
    ways, queries, sizes = _sizes(settings, available, int(is_target.sum()))
    each = settings.shots + queries
    usable = rng.permutation(np.flatnonzero(available >= each))
    if len(usable) < ways:
        raise DataError(
            f"{ways}-way episodes with {each} samples per class need {ways} such classes but "
            f"{pool.name} has {len(usable)}",
            "use fewer classes_per_node, shots or queries",
        )
    sides, notes = _sides(usable, ways, is_target)
    classes = np.stack(
        [rng.choice(sides[int(target)], ways, replace=False) for target in is_target]
    ).astype(np.int64)
    counts = np.full(classes.shape, each, np.int64)
    if sides[0] is sides[1]:
        groups = [(np.ones_like(is_target), usable)]
    else:
        groups = [(~is_target, sides[0]), (is_target, sides[1])]
    for members, allowed in groups:
        stock = np.zeros_like(available)
        stock[allowed] = available[allowed] // each * each  # what is over fits no episode
        if members.any():
            classes[members], redraws = fit(classes[members], counts[members], stock, pool, rng)
            notes += redraws
    classes = rng.permuted(classes, axis=1)  # redrawing may have left an order behind
    owned = deal(pool.labels, classes, counts, rng)

    labels = np.full(len(pool.labels), -1, np.int64)
    labels[np.concatenate(owned)] = np.tile(np.repeat(np.arange(ways), each), settings.nodes)
    nodes = []
    for name, target, positions in zip(names, is_target, owned, strict=True):
        table = positions.reshape(ways, each)
        support, query = table[:, : settings.shots].ravel(), table[:, settings.shots :].ravel()
        nodes.append(Node(name, "target" if target else "source", support, query))
    called = tuple(f"way {number}" for number in range(ways))
    task = Task("classification", ways, called, local_labels=True)
    notes = pool.notes + sizes + notes
    about = pool.name, notes, pool.features, pool.encoding, pool.parts
    return Federation(pool.inputs, labels, task, nodes, *about)


def _sizes(
    settings: DataSettings, available: Counts, targets: int
) -> tuple[int, int, tuple[str, ...]]:
    """N of N-way and the query samples per class, and a note on what the data did not suffice for.

    As asked for; where that was left open 5 and 5 or, if the data have too few samples of a class
    for all nodes, fewer query samples, and only then fewer classes.

    Args:
        settings: what was asked for.
        available: (C,) samples of each class.
        targets: how many of the nodes are targets.
    """
    ways, queries = settings.classes_per_node, settings.queries
    counts = range(_QUERIES, 0, -1) if queries is None else (queries,)
    for count in counts:
        stock = available // (settings.shots + count)
        apart = ways is None or int(np.count_nonzero(stock)) >= 2 * ways
        if _suffices(stock, ways or _WAYS, settings.nodes, targets, apart):
            if count == counts[0]:
                return ways or _WAYS, count, ()
            note = (
                f"{count} query sample{'s' * (count > 1)} per class, not {counts[0]}, since there "
                f"are no more for {settings.nodes} nodes"
            )
            return ways or _WAYS, count, (note,)
    few = settings.classes_of_a_node
    if ways is not None or np.count_nonzero(available) < 2 * _WAYS:
        return few, counts[0], ()
    note = (
        f"{few} classes per node, not {_WAYS}, since there are no more for {settings.nodes} nodes"
    )
    return few, counts[0], (note,)


def _suffices(stock: Counts, ways: int, nodes: int, targets: int, apart: bool) -> bool:
    """Whether classes of a stock suffice for all nodes.

    Args:
        stock: (C,) how many episodes each class has samples for.
        ways: classes of an episode.
        nodes: how many episodes.
        targets: of these.
        apart: whether classes of targets are kept from sources.
    """
    usable, total = int(np.count_nonzero(stock)), int(stock.sum())
    if usable < (2 * ways if apart else ways) or total < ways * nodes:
        return False
    if not apart or targets == 0:
        return True
    share = _share(targets / nodes, usable, ways) / usable  # classes are drawn, not chosen
    mine, others = (part * total for part in (share, 1 - share))
    return bool(mine >= ways * targets and others >= ways * (nodes - targets))


def _share(targets: float, classes: int, ways: int) -> int:
    """How many classes are for targets, at least N on each side."""
    return int(np.clip(round(targets * classes), ways, classes - ways))


def _sides(
    usable: Counts, ways: int, is_target: npt.NDArray[np.bool_]
) -> tuple[tuple[Counts, Counts], tuple[str, ...]]:
    """The classes of the sources and those of the targets."""
    if not is_target.any():
        return (usable, usable), ()
    if len(usable) < 2 * ways:
        note = (
            f"source and target episodes share classes: {2 * ways} are needed to keep "
            f"{ways}-way episodes apart and {len(usable)} have enough samples"
        )
        return (usable, usable), (note,)
    count = _share(is_target.mean(), len(usable), ways)
    return (usable[count:], usable[:count]), ()
