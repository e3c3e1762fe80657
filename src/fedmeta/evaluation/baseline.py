"""What nothing has to be learned for: every metric of the most frequent class, or of a mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmeta.data.federation import Federation
from fedmeta.evaluation.majority import majority


def baseline(federation: Federation) -> dict[str, Any]:
    """The mean over the targets of every metric, for answers that look at no input.

    Of classes that is the most frequent one of the source nodes, of values the mean of each
    target's own support set. Empty where nobody can tell.

    Example:
        >>> from fedmeta.data.federation import Node, Task
        >>> rows = np.split(np.arange(8), 4)
        >>> nodes = [Node("a", "source", rows[0], rows[1]), Node("b", "target", rows[2], rows[3])]
        >>> labels, task = np.array([0, 0, 0, 1, 1, 1, 0, 1]), Task("classification", 2, ("n", "y"))
        >>> found = baseline(Federation(np.zeros((8, 1)), labels, task, nodes))
        >>> found["of"], found["balanced-accuracy"], round(found["f1"], 3)
        ('always the most frequent class, n', 0.5, 0.333)
    """
    if federation.task.kind == "regression":
        return _of_means(federation)
    most = majority(federation)
    if most is None:
        return {}
    number = int(np.argmax(federation.class_counts))
    balanced, f1 = [], []
    for node in federation.targets:
        labels = federation.labels[node.query]
        held, hits = len(np.unique(labels)), int((labels == number).sum())
        balanced.append(float(hits > 0) / held)
        f1.append(2 * hits / (len(labels) + hits) / (held + (hits == 0)))
    return {
        "of": f"always the most frequent class, {most.name}",
        "accuracy": most.accuracy,
        "balanced-accuracy": float(np.mean(balanced)),
        "f1": float(np.mean(f1)),
        "auc": 0.5,
    }


def _of_means(federation: Federation) -> dict[str, Any]:
    rows = []
    for node in federation.targets:
        values = federation.labels[node.query]
        error = values - federation.labels[node.support].mean(axis=0)
        spread = values.var(axis=0)
        r2 = 1 - (error**2).mean(axis=0) / np.where(spread > 0, spread, np.nan)
        rows.append((float((error**2).mean()), float(np.abs(error).mean()), float(np.mean(r2))))
    if not rows:
        return {}
    known = np.array(rows)
    found: dict[str, Any] = {"of": "the mean of each device's own labels"}
    for place, name in enumerate(("mse", "mae", "r2")):
        column = known[:, place][np.isfinite(known[:, place])]
        if len(column):
            found[name] = float(column.mean())
    return found
