"""The federation of the example: a node per person, ten windows to adapt to, five people held out.

A person made two recordings or more. Ten windows of the first, spread over the activities as
evenly as they go, are the support set; windows of the others are the query set. Neighbouring
windows of one recording overlap by half, so a random split would show a model half of what it is
judged on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedmeta import Federation, Node, Task

SUPPORT = 10
"""Labelled windows that a person adapts with."""
QUERY = 40
"""Windows that a source person learns from besides; a target is judged on all it has."""
TARGETS = (26, 27, 28, 29, 30)
"""Who is held out: the last five people, in every seed, so that no choice was made on them."""

Positions = npt.NDArray[np.int64]


def load_people(path: Path, seed: int) -> Federation:
    """The federation of a seed, which draws everybody's windows.

    Args:
        path: of hapt_windows.npz, see README.md.
        seed: of the draws.
    """
    with np.load(path) as file:
        x, y, person, recording = (file[key] for key in ("x", "y", "subject", "experiment"))
        names = tuple(str(name).lower() for name in file["class_names"])
    rng = np.random.default_rng(seed)
    nodes = []
    for each in np.unique(person).tolist():
        mine = np.flatnonzero(person == each)
        first = recording[mine] == recording[mine].min()
        support = spread_evenly(rng.permutation(mine[first]), y, SUPPORT)
        query = rng.permutation(mine[~first])
        held_out = each in TARGETS
        query = query if held_out else spread_evenly(query, y, QUERY)
        nodes.append(Node(f"person-{each}", "target" if held_out else "source", support, query))
    inputs = np.ascontiguousarray(x.transpose(0, 2, 1))  # channels first
    task = Task("classification", len(names), names)
    return Federation(inputs, y.astype(np.int64), task, nodes, "motion")


def spread_evenly(positions: Positions, labels: npt.NDArray[np.uint8], count: int) -> Positions:
    """`count` of the positions, the first of every class before the second of any.

    Example:
        >>> spread_evenly(np.arange(5), np.array([0, 0, 0, 1, 1], np.uint8), 3)
        array([0, 3, 1])
    """
    rank = np.zeros(len(positions), np.int64)
    for label in np.unique(labels[positions]):
        of_class = labels[positions] == label
        rank[of_class] = np.arange(of_class.sum())
    return positions[np.argsort(rank, kind="stable")[:count]]
