"""The field's protocols beside ours: the model as it is, one head, on samples nobody learned from.

Ours asks what a new device of a task reaches after adapting. The field asks one model that nobody
adapts, on a test set of every task:

    class-incremental   which of all classes seen so far?     the task is unknown
    task-incremental    which of the task's own classes?      the task is told

A test set is all that the targets of a task hold, which training and platform never see. Entry
(k, j) of the class-incremental matrix has the classes of the first max(k, j) tasks: one that is
still to come is asked about with its own classes among those seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmeta.data.federation import Federation
from fedmeta.models.meta_model import MetaModel
from fedmeta.studies.sequences.drawing import Drawn

CLASS_INCREMENTAL, TASK_INCREMENTAL = "class-incremental", "task-incremental"
_AT_ONCE = 1024  # samples that pass through the model together


def one_head_row(
    models: Sequence[MetaModel],
    drawn: Drawn,
    learned: int,
    *,
    shared: bool,
    device: torch.device | str = "cpu",
) -> list[dict[str, float]]:
    """A row of both matrices: every task's test set, after some tasks were learned.

    Args:
        models: for each task the model that is asked.
        drawn: the nodes.
        learned: how many tasks the models have learned.
        shared: whether it is one head for all tasks; else nobody knows all classes, and the
            class-incremental matrix is left out.
        device: that the models are on.
    """
    row = []
    for number, model in enumerate(models):
        logits, labels = _answers(model, drawn.tasks[number], device)
        found = {TASK_INCREMENTAL: accuracy(logits, labels, drawn.classes[number])}
        if shared:
            seen = drawn.known(range(max(learned, number + 1)))
            found[CLASS_INCREMENTAL] = accuracy(logits, labels, seen)
        row.append(found)
    return row


def accuracy(logits: Tensor, labels: Tensor, classes: Sequence[int]) -> float:
    """The share of samples whose class leads among some; NaN where an output is not finite.

    Example:
        >>> logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
        >>> labels = torch.tensor([1, 1])
        >>> accuracy(logits, labels, (0, 1, 2)), accuracy(logits, labels, (1, 2))
        (0.5, 1.0)
    """
    if not bool(logits.isfinite().all()):
        return float("nan")
    chosen = torch.tensor(classes)[logits[:, list(classes)].argmax(dim=1)]
    return float(f"{(chosen == labels).double().mean().item():.6g}")


def _answers(
    model: MetaModel, task: Federation, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """The model's outputs for the test set of a task, and the classes of its samples."""
    held = [np.concatenate([each.support, each.query, each.precise]) for each in task.targets]
    rows = np.unique(np.concatenate(held))
    parts = np.array_split(rows, -(-len(rows) // _AT_ONCE))
    with torch.no_grad():
        scaled = (model.scaled(task.inputs[part]).to(device) for part in parts)
        logits = [model.network(model.theta, inputs).cpu() for inputs in scaled]
    return torch.cat(logits), torch.from_numpy(task.labels[rows].astype(np.int64))
