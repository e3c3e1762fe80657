"""What a sequence is measured by, from its accuracy matrix.

R[k][j] is the accuracy on the targets of task j, each adapted, after the tasks 1 … k were learned;
row 0 is the model before any task. With T tasks:

    average     1/T Σ_j R[T][j]
    forgetting  1/(T−1) Σ_{j<T} (R[j][j] − R[T][j]), minus the backward transfer
    new         1/(T−1) Σ_{k>1} R[k][k], what is reached on a task that comes after others
    forward     1/(T−1) Σ_{j>1} (R[j−1][j] − R[0][j]), what earlier tasks do for one to come
    incremental 1/T Σ_k 1/k Σ_{j≤k} R[k][j], the average accuracy of class-incremental tables
    cost        L_p, the mean loss of earlier tasks' sources under the last model

Lopez-Paz, Ranzato, Gradient episodic memory for continual learning, NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedmeta.evaluation.intervals import interval

Matrix = Sequence[Sequence[float]]
Repeat = Mapping[str, Any]
"""What `running.run_sequence` returns of one seed."""


def average(matrix: Matrix) -> float:
    """Accuracy over all tasks at the end.

    Example:
        >>> average([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]])
        0.75
    """
    return fmean(matrix[-1])


def forgetting(matrix: Matrix) -> float | None:
    """What was lost of earlier tasks since they were learned; None for a single row.

    Example:
        >>> round(forgetting([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]]), 6)
        0.2
    """
    if not _in_order(matrix):
        return None
    last = matrix[-1]
    return fmean(matrix[j + 1][j] - last[j] for j in range(len(last) - 1))


def new(matrix: Matrix) -> float | None:
    """What is reached on tasks that come after others, just after learning them.

    Example:
        >>> new([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]])
        0.8
    """
    if not _in_order(matrix):
        return None
    return fmean(matrix[k + 1][k] for k in range(1, len(matrix[0])))


def forward(matrix: Matrix) -> float | None:
    """What earlier tasks do for one that has not been learned yet.

    Example:
        >>> round(forward([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]]), 6)
        0.1
    """
    if not _in_order(matrix):
        return None
    return fmean(matrix[j][j] - matrix[0][j] for j in range(1, len(matrix[0])))


def incremental(matrix: Matrix) -> float | None:
    """Accuracy over the tasks so far, on average over the moments after each of them.

    Example:
        >>> incremental([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]])
        0.825
    """
    if not _in_order(matrix):
        return None
    return fmean(fmean(row[: k + 1]) for k, row in enumerate(matrix[1:]))


MEASURES: dict[str, Callable[[Matrix], float | None]] = {
    "average": average,
    "forgetting": forgetting,
    "new": new,
    "forward": forward,
}


def measured(repeats: Sequence[Repeat], which: str = "accuracy") -> dict[str, Any]:
    """Every measure as mean and 95 % interval over the seeds that finished.

    Args:
        repeats: as `running.run_sequence` returns them.
        which: "accuracy" (query sets) or "precise".
    """
    done = [each for each in repeats if not each["diverged"] and which in each]
    table = {
        name: summary([value for each in done if (value := measure(each[which])) is not None])
        for name, measure in {**MEASURES, "incremental": incremental}.items()
    }
    costs = [fmean(each["cost"]) for each in done if each.get("cost")]
    return {**table, "cost": summary(costs), "diverged": sum(r["diverged"] for r in repeats)}


def mean_matrix(repeats: Sequence[Repeat], which: str = "accuracy") -> list[list[dict[str, Any]]]:
    """The accuracy matrix as means and intervals over the seeds that finished."""
    done = [each[which] for each in repeats if not each["diverged"] and which in each]
    if not done:
        return []
    rows, columns = range(len(done[0])), range(len(done[0][0]))
    return [[summary([one[k][j] for one in done]) for j in columns] for k in rows]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, half width of the 95 % interval and number of values."""
    mean, width = interval(values) if values else (None, None)
    return {"mean": mean, "ci95": width, "n": len(values)}


def _in_order(matrix: Matrix) -> bool:
    """Whether tasks were learned one after the other, not all at once."""
    return len(matrix) == len(matrix[0]) + 1
