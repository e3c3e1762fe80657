"""Classes as a device names them: their numbers, and own names where numbers are local to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Task
from fedmeta.data.pool import Array


def with_device_classes(task: Task, names: Sequence[str]) -> Task:
    """The task with a device's class names, where labels are local; else as it is.

    Names that the task has keep their numbers. Others take numbers that are left, in sorted order
    (numbers by size), first those that no device has named yet ("way k").

    Args:
        task: of the model.
        names: the device's classes, in any order, as often as they come.

    Raises:
        DataError: if there are more than the model tells apart.

    Example:
        >>> task = Task("classification", 3, ("way 0", "way 1", "way 2"), local_labels=True)
        >>> with_device_classes(task, ["dog", "cat", "dog"]).class_names
        ('cat', 'dog', 'way 2')
    """
    known, own = task.class_names, {*names}
    new = own - {*known}
    if not task.local_labels or not new:
        return task
    if len(own) > len(known):
        raise DataError(
            f"there are {len(own)} classes, the model tells {len(known)} apart",
            f"give samples of at most {len(known)} classes",
        )
    whole = all(name.removeprefix("-").isdecimal() for name in new)
    free = [number for number, name in enumerate(known) if name not in own]
    free.sort(key=lambda number: known[number] != f"way {number}")  # else as they are numbered
    called = list(known)
    for number, name in zip(free, sorted(new, key=int if whole else None), strict=False):
        called[number] = name
    return replace(task, class_names=tuple(called))


def class_numbers(task: Task, labels: Array) -> list[int]:
    """The numbers of classes that are given by name.

    Args:
        task: of the model.
        labels: (n,) names as in training; where classes have names that are no numbers, their
            numbers will do.

    Example:
        >>> import numpy as np
        >>> class_numbers(Task("classification", 2, ("cat", "dog")), np.array(["dog", "cat"]))
        [1, 0]
    """
    numbers = {name: number for number, name in enumerate(task.class_names)}
    texts = [str(value) for value in labels.tolist()]
    unknown = [text for text in texts if text not in numbers]
    words = not any(name.lstrip("-").isdigit() for name in numbers)
    if unknown and words and labels.dtype.kind in "iu":
        unknown = [text for text in texts if not 0 <= int(text) < len(numbers)]
        numbers = {text: int(text) for text in texts}
    if unknown:
        raise DataError(
            f"the model knows no class {unknown[0]!r}",
            f"its classes are {', '.join(task.class_names[:20])}",
        )
    return [numbers[text] for text in texts]
