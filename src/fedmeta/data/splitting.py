"""A node's samples, split into support and query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmeta.data.federation import Positions
from fedmeta.data.pool import Array


def split(
    owned: Sequence[Positions], strata: Array, share: float, rng: np.random.Generator
) -> list[tuple[Positions, Positions]]:
    """Support and query positions of every node, all nodes at once.

    Args:
        owned: the positions of each node, at least two.
        strata: (N,) class of every sample of the pool (all the same: a plain random split).
        share: share of a node's samples that goes to support. Every class of which a node has at
            least two is in both sets, and neither set is empty, even if the share is missed.
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
    return counts


def _rounded(values: Array) -> Array:
    return np.floor(values + 0.5).astype(np.int64)
