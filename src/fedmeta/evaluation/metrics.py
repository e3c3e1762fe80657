"""Metrics of nodes: a few lines of torch that run for all nodes at once, and AUC from scores.

With hits h_c, answers a_c and samples n_c of class c, over the classes of one node's judged set:

    recall_c = h_c / n_c     F1_c = 2 h_c / (a_c + n_c)     balanced accuracy = mean of recall_c
    R² = 1 − Σ(y − ŷ)² / Σ(y − ȳ)²                          AUC_c = P(score of c > score of a rest)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedmeta.core.errors import SettingError
from fedmeta.core.metrics import METRICS
from fedmeta.data.pool import Array

OwnMetric = Callable[[Array, Array], float]
"""(labels, outputs) of one node → a number: class numbers and (n, classes) probabilities, or
(n, outputs) values and predictions in the labels' own unit."""

_MOST_CLASSES = 200  # of a confusion matrix that is kept


def class_metrics(answers: Tensor, labels: Tensor, mask: Tensor, classes: int) -> dict[str, Tensor]:
    """Balanced accuracy and macro F1 of one node; it runs under `torch.func.vmap` over nodes.

    Args:
        answers: (n,) class numbers.
        labels: (n,) likewise.
        mask: (n,) 1 where there is a sample, else 0.
        classes: how many there are.

    Example:
        >>> answers, labels = torch.tensor([0, 0, 1, 0]), torch.tensor([0, 0, 1, 1])
        >>> found = class_metrics(answers, labels, torch.ones(4), 3)
        >>> found["balanced-accuracy"].item(), round(found["f1"].item(), 4)
        (0.75, 0.7333)
    """
    numbers = torch.arange(classes, device=labels.device)
    said = (answers.unsqueeze(-1) == numbers) * mask.unsqueeze(-1)
    true = (labels.unsqueeze(-1) == numbers) * mask.unsqueeze(-1)
    hits, answered, held = (said * true).sum(dim=0), said.sum(dim=0), true.sum(dim=0)
    recall = hits / held.clamp(min=1)
    either = answered + held
    f1 = 2 * hits / either.clamp(min=1)
    return {
        "balanced-accuracy": recall.sum() / (held > 0).sum().clamp(min=1),
        "f1": f1.sum() / (either > 0).sum().clamp(min=1),
    }


def value_metrics(outputs: Tensor, labels: Tensor, mask: Tensor, unit: Tensor) -> dict[str, Tensor]:
    """Mean absolute error in the labels' own unit, and R², the mean over outputs, of one node.

    R² is NaN where the labels of the node do not vary.

    Args:
        outputs: (n, outputs), of labels as they are scaled.
        labels: likewise.
        mask: (n,) 1 where there is a sample, else 0.
        unit: (outputs,) what labels were divided by.
    """
    weight = mask.unsqueeze(-1) / mask.sum()
    error = outputs - labels
    centre = (labels * weight).sum(dim=0)
    spread = ((labels - centre).square() * weight).sum(dim=0)
    unexplained = (error.square() * weight).sum(dim=0)
    return {
        "mae": ((error.abs() * unit) * weight).sum(dim=0).mean(),
        "r2": (1 - unexplained / torch.where(spread > 0, spread, torch.nan)).mean(),
    }


def auc(scores: Array, positive: Array, group: Array, groups: int) -> npt.NDArray[np.float64]:
    """The area under the ROC curve in every group, by ranks; ties count half.

        AUC = (R − p(p+1)/2) / (p·q),  R: sum of the ranks of the p positives among all p + q

    Args:
        scores: (n,) the higher, the more likely positive.
        positive: (n,) whether it is.
        group: (n,) which group, from 0.
        groups: how many there are.

    Returns:
        (groups,) numbers; NaN where a group has no positive or no negative.

    Example:
        >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]) > 0, np.zeros(4, int), 1)
        array([0.75])
    """
    order = np.lexsort((scores, group))
    score, truth, of = scores[order], positive[order].astype(np.float64), group[order]
    first = np.searchsorted(of, np.arange(groups))
    ranks = np.arange(len(of)) - first[of] + 1.0
    new = np.ones(len(of), np.bool_)
    new[1:] = (score[1:] != score[:-1]) | (of[1:] != of[:-1])
    tie = np.cumsum(new) - 1
    ranks = (np.bincount(tie, ranks) / np.bincount(tie))[tie]
    sums, p = np.bincount(of, ranks * truth, groups), np.bincount(of, truth, groups)
    q = np.bincount(of, 1 - truth, groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = (sums - p * (p + 1) / 2) / (p * q)
    return found


def node_aucs(scores: Array, labels: Array, owner: Array, nodes: int) -> list[float]:
    """AUC of every node, one class against the rest: the mean over classes that have both.

    Args:
        scores: (n, classes) of all nodes' judged samples.
        labels: (n,) class numbers.
        owner: (n,) whose sample it is.
        nodes: how many there are.
    """
    classes = range(scores.shape[1])
    found = np.stack([auc(scores[:, c], labels == c, owner, nodes) for c in classes])
    there = ~np.isnan(found)
    count = there.sum(axis=0)
    total = np.where(there, found, 0.0).sum(axis=0)
    means: list[float] = np.where(count > 0, total / np.maximum(count, 1), np.nan).tolist()
    return means


def confusion(answers: Array, labels: Array, classes: int) -> npt.NDArray[np.int64]:
    """How many samples of each class (row) were put into each class (column).

    Example:
        >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist()
        [[1, 1], [0, 1]]
    """
    counts = np.bincount(labels * classes + answers, minlength=classes**2)
    table: npt.NDArray[np.int64] = counts.reshape(classes, classes)
    return table


def class_table(scores: Array, labels: Array, names: Sequence[str]) -> dict[str, Any]:
    """Every class over the samples of all nodes, and the confusion matrix.

    Args:
        scores: (n, classes).
        labels: (n,) class numbers.
        names: of the classes.

    Returns:
        `classes`: name, samples, recall, precision, f1 and auc of each (None where there is no
        sample to tell by); `confusion`: rows are true classes; left out above 200 classes.
    """
    count = len(names)
    table = confusion(scores.argmax(axis=1), labels, count)
    hits, held, answered = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    group = np.zeros(len(labels), np.int64)

    def share(part: int, whole: int) -> float | None:
        return float(part / whole) if whole else None

    rows = []
    for number, name in enumerate(names):
        area = float(auc(scores[:, number], labels == number, group, 1)[0])
        rows.append(
            {
                "name": name,
                "samples": int(held[number]),
                "recall": share(hits[number], held[number]),
                "precision": share(hits[number], answered[number]),
                "f1": share(2 * hits[number], held[number] + answered[number]),
                "auc": None if np.isnan(area) else area,
            }
        )
    kept = {"confusion": table.tolist()} if count <= _MOST_CLASSES else {}
    return {"classes": rows, **kept}


def own_name(metric: OwnMetric) -> str:
    """What a metric of one's own is called: the name of its function, or of its class."""
    return str(getattr(metric, "__name__", type(metric).__name__))


def own_metrics(
    metrics: Sequence[OwnMetric], labels: Array, outputs: Array, owner: Array, nodes: int
) -> Mapping[str, list[float]]:
    """Metrics of one's own, node by node, under the names of their functions."""
    found: dict[str, list[float]] = {}
    ends = np.flatnonzero(np.diff(owner)) + 1  # samples come node by node
    parts = list(zip(np.split(labels, ends), np.split(outputs, ends), strict=True))
    assert len(parts) == nodes
    for metric in metrics:
        name = own_name(metric)
        if name in METRICS or name in found:
            raise SettingError(f"two metrics are called {name!r}", "give yours another name")
        found[name] = [float(metric(*part)) for part in parts]
    return found
