"""What always answering one class would reach: an accuracy that nothing has to be learned for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmeta.data.federation import Federation

_MARGIN = 0.01  # of accuracy: what a model must have on top, to have learned more than that class
_SHARE = 0.5  # of the sources' samples: below that a class is no majority


@dataclass(frozen=True)
class Majority:
    """The most frequent class of the source nodes.

    Args:
        name: of the class.
        share: of the source nodes' samples that are of it.
        accuracy: of always answering it, the mean over the targets' query sets.
    """

    name: str
    share: float
    accuracy: float


def majority(federation: Federation) -> Majority | None:
    """The most frequent class of a federation's sources; None where nobody can tell.

    That is so for regression, without targets, and where all samples of the sources are of one
    class: a fleet's platform does not see their labels, and has blanks in their place.

    Example:
        >>> from fedmeta.data.federation import Node, Task
        >>> rows = np.split(np.arange(8), 4)
        >>> nodes = [Node("a", "source", rows[0], rows[1]), Node("b", "target", rows[2], rows[3])]
        >>> labels, task = np.array([0, 0, 0, 1, 1, 1, 0, 1]), Task("classification", 2, ("n", "y"))
        >>> majority(Federation(np.zeros((8, 1)), labels, task, nodes))
        Majority(name='n', share=0.75, accuracy=0.5)
    """
    counts = np.array(federation.class_counts)
    if np.count_nonzero(counts) < 2 or not federation.targets:
        return None
    most, task = int(counts.argmax()), federation.task
    hits = [float((federation.labels[each.query] == most).mean()) for each in federation.targets]
    name = task.class_names[most] if task.class_names else str(most)
    return Majority(name, float(counts[most] / counts.sum()), float(np.mean(hits)))


def majority_note(
    found: Majority | None, accuracy: float | None, *, balanced: bool = False
) -> str | None:
    """A line for a reader where the majority alone explains an accuracy; else None.

    Args:
        found: see `majority`.
        accuracy: mean over the same targets' query sets of what is to be explained.
        balanced: whether the loss weighs classes already: such a model is worse by accuracy, and
            better by what the rare classes say.

    Example:
        >>> majority_note(Majority("no", 0.85, 0.877), 0.88)[:50]
        'the most frequent class (no) alone gives 87.7 %: t'
        >>> majority_note(Majority("no", 0.85, 0.877), 0.95) is None
        True
    """
    if found is None or accuracy is None or found.share <= _SHARE:
        return None
    if accuracy > found.accuracy + _MARGIN:
        return None
    alone = f"the most frequent class ({found.name}) alone gives {100 * found.accuracy:.1f} %"
    if balanced:
        return f"{alone}: judge a loss that weighs classes by balanced-accuracy and f1 instead"
    return f"{alone}: the model need not have learned more; try --loss balanced-cross-entropy"
