"""A federation in numbers: who has how much of what, without a single sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmeta.data.federation import Federation, Node


def describe(federation: Federation) -> dict[str, Any]:
    """Counts of a federation, as plain values that JSON can hold.

    Returns:
        `name`, `task` (kind, outputs, class_names), `input_shape`, `features` (names of the
        columns of a table, else empty), `counts` (nodes, sources, targets, samples), `notes`, and
        `nodes`: for each its `name`, `role`, `support`, `query` and `precise` (in samples) and
        `classes` (class name → samples, support and query together, only classes it has; empty
        for regression).

    Example:
        >>> from fedmeta.data.federation import Task
        >>> node = Node("a", "source", np.array([0]), np.array([1]))
        >>> task = Task("classification", 2, ("no", "yes"))
        >>> (row,) = describe(Federation(np.zeros((2, 1)), np.array([1, 1]), task, [node]))["nodes"]
        >>> row["support"], row["query"], row["precise"], row["classes"]
        (1, 1, 0, {'yes': 2})
    """
    task, sources = federation.task, len(federation.sources)
    return {
        "name": federation.name,
        "task": {
            "kind": task.kind,
            "outputs": task.outputs,
            "class_names": list(task.class_names),
        },
        "input_shape": list(federation.inputs.shape[1:]),
        "features": list(federation.features),
        "counts": {
            "nodes": len(federation.nodes),
            "sources": sources,
            "targets": len(federation.nodes) - sources,
            "samples": sum(node.size for node in federation.nodes),
        },
        "notes": list(federation.notes),
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "support": len(node.support),
                "query": len(node.query),
                "precise": len(node.precise),
                "classes": _class_counts(federation, node),
            }
            for node in federation.nodes
        ],
    }


def _class_counts(federation: Federation, node: Node) -> dict[str, int]:
    task = federation.task
    if task.kind == "regression":
        return {}
    labels = federation.labels[np.concatenate([node.support, node.query])]
    numbers, counts = np.unique(labels, return_counts=True)
    names = task.class_names or tuple(map(str, range(task.outputs)))
    return {names[n]: int(c) for n, c in zip(numbers, counts, strict=True)}
