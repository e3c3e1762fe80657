"""Who gets which samples: seeded partitions of a pool into disjoint sets, one per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Positions, node_names
from fedmeta.data.pool import Array, Pool
from fedmeta.data.settings import DataSettings

Counts = npt.NDArray[np.int64]


class Parts(NamedTuple):
    """The positions in the pool that each node holds, under its name, and how that went."""

    names: Sequence[str]
    positions: Sequence[Positions]
    notes: tuple[str, ...] = ()


def partition(pool: Pool, settings: DataSettings, seed: int) -> Parts:
    """Deal the pool's samples out to nodes as `settings.partition` says; nodes share no sample.

    Args:
        pool: the samples.
        settings: the kind of partition (all but "episodes") and its sizes.
        seed: same pool, settings and seed: same parts.
    """
    settings, rng = settings.resolved(), generator(seed, DataPurpose.SAMPLES)
    match settings.partition:
        case "random-classes":
            return random_classes(pool, settings, rng)
        case "fixed-pairs":
            return fixed_pairs(pool, settings, rng)
        case "dirichlet":
            return dirichlet(pool, settings, rng)
        case "column":
            return by_column(pool)
        case other:
            raise SettingError(f"partition is {other!r}", "episodes are drawn by draw_episodes")


def random_classes(pool: Pool, settings: DataSettings, rng: np.random.Generator) -> Parts:
    """Every node gets `classes_per_node` distinct random classes, in as equal parts as possible.

    Classes are drawn first, uniformly. Where more is asked of a class than it has, random nodes
    give it up for another one, drawn with a chance that grows with what is left; see `fit`.
    """
    available = class_counts(pool)
    present = np.flatnonzero(available)
    k = settings.classes_of_a_node
    if len(present) < k:
        raise DataError(
            f"classes_per_node is {k} but {pool.name} has samples of {len(present)} classes",
            "ask for fewer classes per node",
        )
    counts = _counts_per_class(settings, rng)
    drawn = np.stack([rng.choice(present, k, replace=False) for _ in range(settings.nodes)])
    classes, notes = fit(drawn, counts, available, pool, rng)
    return Parts(node_names(settings.nodes), deal(pool.labels, classes, counts, rng), notes)


def fixed_pairs(pool: Pool, settings: DataSettings, rng: np.random.Generator) -> Parts:
    """Node u gets classes 2u and 2u+1 modulo their number (the authors' code).

    Classes without any samples are left out of the count.
    """
    available = class_counts(pool)
    present = np.flatnonzero(available)
    if len(present) < 2:
        raise DataError(f"{pool.name} has one class", "'fixed-pairs' needs at least two")
    counts = _counts_per_class(settings, rng)
    classes = present[(2 * np.arange(settings.nodes)[:, None] + np.arange(2)) % len(present)]
    asked = _sum_by_class(classes, counts, len(available))
    if (asked > available).any():
        worst = int((asked - available).argmax())
        raise DataError(
            f"fixed pairs of {settings.nodes} nodes ask for {asked[worst]} samples of class "
            f"{pool.class_names[worst]!r} but {pool.name} has {available[worst]}",
            "use fewer nodes, fewer samples per node, or partition 'random-classes'",
        )
    return Parts(node_names(settings.nodes), deal(pool.labels, classes, counts, rng))


def dirichlet(pool: Pool, settings: DataSettings, rng: np.random.Generator) -> Parts:
    """A node's class shares are Dirichlet(concentration), its class counts multinomial.

    A node that would ask for more than is left of a class draws again among the classes that are
    left; after a few vain draws it takes a random sample of what is left.
    """
    left = class_counts(pool)
    sizes = rng.integers(*settings.samples, settings.nodes, endpoint=True)
    if sizes.sum() > left.sum():
        raise _too_many(int(sizes.sum()), left, pool, settings.nodes)
    counts = np.empty((settings.nodes, len(left)), np.int64)
    redrawn = 0
    for node, size in enumerate(sizes):
        counts[node], again = _dirichlet_counts(size, left, settings.concentration, rng)
        left -= counts[node]
        redrawn += again
    classes = np.broadcast_to(np.arange(len(left)), counts.shape)
    notes = _redraw_note(redrawn, settings.nodes)
    return Parts(node_names(settings.nodes), deal(pool.labels, classes, counts, rng), notes)


def _dirichlet_counts(
    size: int, left: Counts, concentration: float, rng: np.random.Generator
) -> tuple[Counts, bool]:
    """Samples per class of one node, and whether they had to be drawn more than once."""
    present = np.flatnonzero(left)
    counts = np.zeros_like(left)
    for attempt in range(20):
        shares = rng.dirichlet(np.full(len(present), concentration))
        counts[present] = rng.multinomial(size, shares)
        if (counts <= left).all():
            return counts, attempt > 0
    return rng.multivariate_hypergeometric(left, size), True


def by_column(pool: Pool) -> Parts:
    """A node for each distinct value that says whose sample it is; its name is the value.

    Example:
        >>> pool = Pool(np.zeros((3, 1)), np.zeros(3, int), ("a",), "x", np.array(["u", "v", "u"]))
        >>> by_column(pool).names, [each.tolist() for each in by_column(pool).positions]
        (['u', 'v'], [[0, 2], [1]])
    """
    if pool.owners is None:
        raise DataError(f"{pool.name} does not say whose samples they are", "set node, or draw")
    if pool.owner_names:
        values, owner = np.array(pool.owner_names), pool.owners
    else:
        values, owner = np.unique(pool.owners, return_inverse=True)
    sizes = np.bincount(owner, minlength=len(values))
    order = np.argsort(owner, kind="stable").astype(np.int64)
    held = zip(values.tolist(), np.split(order, np.cumsum(sizes)[:-1]), strict=True)
    names, positions = zip(*((str(name), each) for name, each in held if len(each)), strict=True)
    return Parts(list(names), list(positions))


def class_counts(pool: Pool) -> Counts:
    """How many samples the pool has of each class."""
    return np.bincount(pool.labels, minlength=len(pool.class_names)).astype(np.int64)


def fit(
    classes: Counts, counts: Counts, available: Counts, pool: Pool, rng: np.random.Generator
) -> tuple[Counts, tuple[str, ...]]:
    """Change as few nodes' classes as needed for every class to have what is asked of it.

    Args:
        classes: (nodes, k) the classes each node drew, distinct within a row.
        counts: (nodes, k) how many samples of each it asks for.
        available: (C,) how many there are.
        pool: for the words of the error.
        rng: random stream.

    Returns:
        The classes, and a note if any were drawn again.

    Raises:
        DataError: with the arithmetic, where no way was found.
    """
    if counts.sum() > available.sum():
        raise _too_many(int(counts.sum()), available, pool, len(classes))
    fitted, left = classes.copy(), available - _sum_by_class(classes, counts, len(available))
    for short in np.flatnonzero(left < 0):
        for node, column in rng.permutation(np.argwhere(fitted == short)):
            if left[short] >= 0:
                break
            count = counts[node, column]
            chance = np.where(left >= count, left, 0)
            chance[fitted[node]] = 0
            if chance.any():
                other = rng.choice(len(left), p=chance / chance.sum())
                fitted[node, column] = other
                left[short] += count
                left[other] -= count
    if (left < 0).any():
        fitted = _fit_greedily(counts, available, pool, rng)
    redrawn = int((fitted != classes).any(axis=1).sum())
    return fitted, _redraw_note(redrawn, len(classes))


def _fit_greedily(
    counts: Counts, available: Counts, pool: Pool, rng: np.random.Generator
) -> Counts:
    """Big nodes first, each takes the classes with most left: the best chance in a tight pool."""
    left, k = available.copy(), counts.shape[1]
    classes = np.empty_like(counts)
    shuffled = rng.permutation(len(counts))
    for node in shuffled[np.argsort(-counts[shuffled].sum(axis=1), kind="stable")]:
        fullest = np.argsort(-left, kind="stable")[:k]
        wanted = np.argsort(-counts[node], kind="stable")
        classes[node, wanted] = fullest
        left[classes[node]] -= counts[node]
        if left.min() < 0:
            raise _too_many(int(counts.sum()), available, pool, len(counts))
    return classes


def deal(
    labels: Array, classes: Counts, counts: Counts, rng: np.random.Generator
) -> list[Positions]:
    """Random, disjoint positions: `counts[i, j]` samples of class `classes[i, j]` for node i.

    A node's positions come class by class, in the order of its row.
    """
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")].astype(np.int64)
    first = np.searchsorted(labels[by_label], np.arange(max(labels.max(), classes.max()) + 1))
    asked, size = classes.ravel(), counts.ravel()
    # Requests for one class take consecutive stretches of its samples, in the order of the nodes.
    by_class = np.argsort(asked, kind="stable")
    before = np.cumsum(size[by_class]) - size[by_class]
    start = np.empty_like(size)
    first_of_class = np.searchsorted(asked[by_class], asked[by_class])
    start[by_class] = first[asked[by_class]] + before - before[first_of_class]
    inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    given = by_label[np.repeat(start, size) + inside]
    return np.split(given, np.cumsum(counts.sum(axis=1))[:-1])


def _counts_per_class(settings: DataSettings, rng: np.random.Generator) -> Counts:
    """(nodes, k) samples of each class of a node; what does not divide evenly goes to the first."""
    k = settings.classes_of_a_node
    if settings.samples_per_class is not None:
        each = rng.integers(*settings.samples_per_class, settings.nodes, endpoint=True)
        return np.repeat(each[:, None], k, axis=1)
    sizes = rng.integers(*settings.samples, settings.nodes, endpoint=True)[:, None]
    return sizes // k + (np.arange(k) < sizes % k)


def _sum_by_class(classes: Counts, counts: Counts, number: int) -> Counts:
    return np.bincount(classes.ravel(), counts.ravel(), number).astype(np.int64)


def _redraw_note(redrawn: int, nodes: int) -> tuple[str, ...]:
    if not redrawn:
        return ()
    return (f"{redrawn} of {nodes} nodes were redrawn because a class ran out",)


def _too_many(asked: int, available: Counts, pool: Pool, nodes: int) -> DataError:
    present = available[available > 0]
    spread = f"{present.min()} to {present.max()}" if len(present) else "none"
    return DataError(
        f"{nodes} nodes ask for {asked} samples but {pool.name} has {available.sum()} to give, "
        f"{spread} in each of {len(present)} classes, and no way to deal them out was found",
        "use fewer nodes, fewer samples per node, or more data",
    )
