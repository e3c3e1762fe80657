"""Whether devices hold few of the classes: what decides how they adapt where nobody says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmeta.data.federation import Federation


def holders(federation: Federation) -> list[int]:
    """Of every class, how many sources have samples of it; empty for regression."""
    if federation.task.kind == "regression":
        return []
    counts = np.zeros(federation.task.outputs, np.int64)
    for node in federation.sources:
        counts[np.unique(federation.labels[np.concatenate([node.support, node.query])])] += 1
    return [int(count) for count in counts]


def few_of_classes(holders: Sequence[int], nodes: int) -> bool:
    """Whether a node holds, in the mean, at least two but at most half of the classes there are.

    Args:
        holders: of every class, how many nodes have samples of it.
        nodes: how many there are.

    Example:
        >>> few_of_classes([1, 1, 1, 1, 0], 2), few_of_classes([2, 1, 1], 2)
        (True, False)
    """
    there_are = sum(count > 0 for count in holders)
    return 0 < 2 * nodes <= sum(holders) <= there_are / 2 * nodes


def holds_few_classes(federation: Federation) -> bool:
    """Whether the sources of a federation do, as it says or as its samples show."""
    if federation.few_classes is not None:
        return federation.few_classes
    return few_of_classes(holders(federation), len(federation.sources))
