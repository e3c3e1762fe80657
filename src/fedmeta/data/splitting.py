"""What nodes and their samples are for: source or target, support, query or precise set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError, nearest
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Node, Positions
from fedmeta.data.pool import Array
from fedmeta.data.settings import DataSettings


def choose_targets(
    names: Sequence[str], settings: DataSettings, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """For every node, whether it is a target.

    Args:
        names: of the nodes.
        settings: `targets` names them; without it a random `target_share` of the nodes is
            drawn: at least one of two or more nodes, but never all, and none if it is 0.
        rng: random stream.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> chosen = choose_targets(["a", "b", "c"], DataSettings(targets=["b"]), rng)
        >>> chosen.tolist()
        [False, True, False]
    """
    chosen = np.zeros(len(names), np.bool_)
    if settings.targets:
        numbers = {name: number for number, name in enumerate(names)}
        for name in settings.targets:
            if name not in numbers:
                raise DataError(f"there is no node {name!r} to be a target", nearest(name, numbers))
            chosen[numbers[name]] = True
        if chosen.all():
            raise DataError(
                f"targets names all {len(names)} nodes", "leave at least one to train as source"
            )
    elif settings.target_share > 0 and len(names) > 1:
        count = min(max(1, round(settings.target_share * len(names))), len(names) - 1)
        chosen[rng.choice(len(names), count, replace=False)] = True
    return chosen


def split(
    owned: Sequence[Positions], strata: Array, share: float, rng: np.random.Generator
) -> list[tuple[Positions, Positions]]:
    """Support and query positions of every node, all nodes at once.

    Args:
        owned: the positions of each node, at least two.
        strata: (N,) class of every sample of the pool (all the same: a plain random split).
        share: share of a node's samples that goes to support. Every class of which a node has at
            least two is in both sets, and neither set is empty, even if the share is missed. A
            class of one sample is in the support set, unless that would leave the query set less
            than a quarter; a node that has no other classes is split at random.
        rng: random stream.

    Example:
        >>> ((support, query),) = split(
        ...     [np.arange(6)], np.array([0, 0, 0, 0, 1, 1]), 0.5, np.random.default_rng(0)
        ... )
        >>> len(support), len(query), 4 in support or 5 in support, 4 in query or 5 in query
        (3, 3, True, True)
    """
    sizes = np.array([len(each) for each in owned])
    positions = np.concatenate(owned)
    node = np.repeat(np.arange(len(owned)), sizes)
    order = np.lexsort((rng.random(len(positions)), strata[positions], node))
    positions, node = positions[order], node[order]

    # One group per node and class: where it starts, how long it is, whose it is.
    new = np.diff(node, prepend=-1).astype(bool) | np.diff(strata[positions], prepend=-1).astype(
        bool
    )
    start = np.flatnonzero(new)
    length = np.diff(start, append=len(positions))
    counts = _support_counts(length, node[start], sizes, share, rng)

    rank = np.arange(len(positions)) - np.repeat(start, length)
    chosen = rank < np.repeat(counts, length)
    ends = np.cumsum(np.bincount(node[chosen], minlength=len(owned)))
    support = np.split(positions[chosen], ends[:-1])
    query = np.split(positions[~chosen], (np.cumsum(sizes) - ends)[:-1])
    return list(zip(support, query, strict=True))


def ordered_split(
    owned: Sequence[Positions], times: Array, share: float
) -> list[tuple[Positions, Positions]]:
    """Support and query positions of every node, where all support samples come first in time.

    Args:
        owned: the positions of each node, at least two.
        times: (N,) when every sample of the pool was taken; equal times keep the pool's order.
        share: share of a node's samples that goes to support, rounded; neither set is empty.

    Example:
        >>> ((support, query),) = ordered_split([np.arange(3)], np.array([3.0, 1.0, 2.0]), 0.6)
        >>> support.tolist(), query.tolist()
        ([1, 2], [0])
    """
    found = []
    for each in owned:
        by_time = each[np.argsort(times[each], kind="stable")]
        count = min(max(1, int(np.floor(share * len(each) + 0.5))), len(each) - 1)
        found.append((by_time[:count], by_time[count:]))
    return found


def _support_counts(
    length: Array, owner: Array, sizes: Array, share: float, rng: np.random.Generator
) -> Array:
    """How many samples of each group (a class of a node) go to support."""
    # Rounding the running total, not each group, keeps the node's total right; groups of a node
    # come in random order so that no class number is favoured by it.
    order = np.lexsort((rng.random(len(length)), owner))
    until = np.cumsum(length[order]) - (np.cumsum(sizes) - sizes)[owner[order]]
    counts = np.empty_like(length)
    counts[order] = _rounded(share * until) - _rounded(share * (until - length[order]))
    several = length >= 2
    counts = np.clip(counts, several, length - several)
    # Only a node whose samples are all of different classes can still have an empty set.
    total = np.bincount(owner, counts)
    last = order[np.cumsum(np.bincount(owner)) - 1]
    counts[last] += total == 0
    counts[last] -= total == sizes
    alone = np.flatnonzero((length == 1) & (counts == 0))
    several_somewhere = np.bincount(owner, several) > 0
    for node in np.unique(owner[alone[several_somewhere[owner[alone]]]]):
        groups = order[owner[order] == node]
        counts[groups] = _with_single_samples(counts[groups], length[groups], share)
    return counts


def _with_single_samples(counts: Array, length: Array, share: float) -> Array:
    """Of one node: classes of one sample moved from query to support, as far as there is room.

    Nobody can adapt to a class that the support set lacks. The class that is furthest above its
    share gives one up instead; where none has two, the support set grows, to three quarters of the
    node's samples at most.

    Args:
        counts: how many samples of each class go to support.
        length: how many there are.
        share: of the samples that is to go to support.

    Example:
        >>> _with_single_samples(np.array([1, 0]), np.array([2, 1]), 0.2).tolist()
        [1, 1]
        >>> _with_single_samples(np.array([2, 0]), np.array([4, 1]), 0.5).tolist()
        [1, 1]
    """
    counts = counts.copy()
    for single in np.flatnonzero((length == 1) & (counts == 0)):
        above = np.where((length >= 2) & (counts >= 2), counts - share * length, -np.inf)
        if np.isfinite(above).any():
            counts[above.argmax()] -= 1
        elif counts.sum() + 1 > 0.75 * length.sum():
            break
        counts[single] = 1
    return counts


def _rounded(values: Array) -> Array:
    return np.floor(values + 0.5).astype(np.int64)


def with_precise(
    nodes: Sequence[Node], labels: Array, most: int, seed: int
) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes, every target with up to `most` precise samples, and a note if some have fewer.

    A query set of about 15 samples leaves an interval of several points. A node that was drawn by
    class is known by its classes, so any other sample of them judges it as well: those that no
    source holds and that it did not adapt on. Its own query samples and those of other targets may
    be among them.

    Classes of a node come in equal parts as far as they go. Draws depend on the seed and the name
    of the node, and on nothing that is drawn elsewhere; with a larger `most` a node gets what it
    had, and more.

    Args:
        nodes: sources and targets, dealt out already.
        labels: (N,) class of every sample of the pool.
        most: samples per target.
        seed: that of the federation.

    Example:
        >>> nodes = [Node("a", "source", np.array([0]), np.array([1])),
        ...          Node("b", "target", np.array([2]), np.array([3]))]
        >>> drawn, notes = with_precise(nodes, np.array([0, 0, 0, 0, 0, 1]), 5, seed=0)
        >>> [sorted(node.precise.tolist()) for node in drawn]
        [[], [3, 4]]
        >>> notes
        ('1 of 1 targets have fewer than 5 precise samples, the fewest 2',)
    """
    free = np.ones(len(labels), np.bool_)
    for node in nodes:
        if node.role == "source":
            free[node.support] = free[node.query] = False
    available = [
        np.flatnonzero(free & (labels == number)) for number in range(int(labels.max()) + 1)
    ]

    def drawn(node: Node) -> Positions:
        rng = generator(seed, DataPurpose.PRECISE, node.name)
        mine = np.unique(labels[np.concatenate([node.support, node.query])])
        left = [np.setdiff1d(available[number], node.support) for number in mine]
        counts = equal_parts(np.array([len(each) for each in left]), most)
        return np.concatenate(
            [rng.permutation(each)[:count] for each, count in zip(left, counts, strict=True)]
        )

    result = [
        replace(node, precise=drawn(node)) if node.role == "target" else node for node in nodes
    ]
    sizes = [len(node.precise) for node in result if node.role == "target"]
    short = sum(size < most for size in sizes)
    if not short:
        return result, ()
    return result, (
        f"{short} of {len(sizes)} targets have fewer than {most} precise samples, the fewest "
        f"{min(sizes)}",
    )


def equal_parts(available: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """How much of each to take for `total` in all, or all there is: as equal as can be.

    Example:
        >>> equal_parts(np.array([3, 100, 50]), 20).tolist()
        [3, 9, 8]
    """
    counts = np.zeros_like(available)
    left = min(total, int(available.sum()))
    while left > 0:
        unfilled = np.flatnonzero(counts < available)
        share = max(1, left // len(unfilled))
        some = unfilled[:left]  # where less than one each is left, the first ones get it
        more = np.minimum(share, available[some] - counts[some])
        counts[some] += more
        left -= int(more.sum())
    return counts
