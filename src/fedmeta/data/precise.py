"""Precise sets: what a target is judged on beyond its own query set.

A query set of about 15 samples leaves an interval of several points. A node that was drawn by class
is known by its classes, so any other sample of them judges it as well: those that no source holds
and that it did not adapt on. Its own query samples and those of other targets may be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Node, Positions
from fedmeta.data.pool import Array


def with_precise(
    nodes: Sequence[Node], labels: Array, most: int, seed: int
) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes, every target with up to `most` precise samples, and a note if some have fewer.

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
