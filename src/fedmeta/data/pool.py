"""A pool: labelled samples before they are dealt out to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedmeta.data.federation import Task
from fedmeta.data.settings import TaskKind
from fedmeta.errors import DataError

Array = npt.NDArray[Any]


class Pool(NamedTuple):
    """Labelled samples, and whose they are where the data say so.

    Args:
        inputs: (N, *shape), uint8 (images channels first) or float32.
        labels: (N,) int64 class numbers, or (N, outputs) float64 values for regression.
        class_names: names of the classes in the order of their numbers; empty for regression.
        name: what the data are called, for people.
        owners: (N,) whose sample each one is (numbers or texts), or None.
        origin: the file or files they came from, for people.
    """

    inputs: Array
    labels: Array
    class_names: tuple[str, ...]
    name: str
    owners: Array | None = None
    origin: str = ""

    @property
    def task(self) -> Task:
        """What a model has to return for these labels."""
        if self.class_names:
            return Task("classification", len(self.class_names), self.class_names)
        return Task("regression", self.labels.shape[1])

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the samples came from, as a note for people."""
        return (f"{len(self.labels)} samples from {self.origin}",) if self.origin else ()

    def only(self, classes: Sequence[int]) -> Pool:
        """The samples of these classes; class numbers and names stay as they are.

        Example:
            >>> pool = Pool(np.eye(3), np.array([0, 1, 2]), ("a", "b", "c"), "x")
            >>> pool.only([1, 2]).labels.tolist(), pool.only([1, 2]).task.outputs
            ([1, 2], 3)
        """
        kept = np.isin(self.labels, classes)
        owners = None if self.owners is None else self.owners[kept]
        return self._replace(inputs=self.inputs[kept], labels=self.labels[kept], owners=owners)


def pool_from(
    inputs: Array,
    labels: Array,
    *,
    task: TaskKind,
    name: str,
    owners: Array | None = None,
    class_names: Sequence[str] | None = None,
    origin: str = "",
) -> Pool:
    """Arrays as people have them, checked and brought into a pool's form.

    Args:
        inputs: (N, *shape) numbers. uint8 images, (N, H, W) or (N, H, W, channels), are moved to
            channels first; everything that is not uint8 becomes float32 and keeps its shape.
        labels: (N,) numbers or texts; for regression (N,) or (N, outputs) numbers. Classes are
            numbered from 0 in sorted order, unless `class_names` already says what they mean.
        task: "classification" or "regression".
        name: what the data are called, for people and for error messages.
        owners: (N,) numbers or texts that say whose sample it is.
        class_names: the name of class 0, 1, …, for labels that are such numbers.
        origin: the file they came from, for people.

    Example:
        >>> pool = pool_from(np.eye(3), np.array(["b", "a", "b"]), task="classification", name="x")
        >>> pool.labels.tolist(), pool.class_names
        ([1, 0, 1], ('a', 'b'))
    """
    if inputs.ndim == 0 or len(inputs) == 0:
        raise DataError(f"{name} has no samples", "give at least two per node")
    for what, values in (("labels", labels), ("node values", owners)):
        if values is not None and (values.ndim == 0 or len(values) != len(inputs)):
            count = "one" if values.ndim == 0 else len(values)
            raise DataError(
                f"{name} has {len(inputs)} inputs but {count} {what}", "give one per sample"
            )
    if task == "regression":
        classes: tuple[str, ...] = ()
        numbers = _values(labels, name)
    else:
        numbers, classes = _classes(labels, class_names, name)
    return Pool(_inputs(inputs, name), numbers, classes, name, _owners(owners, name), origin)


def _inputs(inputs: Array, name: str) -> Array:
    if inputs.dtype.kind not in "buif":
        raise DataError(f"inputs of {name} are of type {inputs.dtype}", "give numbers")
    if inputs.ndim == 1:
        raise DataError(f"inputs of {name} have one axis", "give (samples, features)")
    if inputs.dtype != np.uint8:
        with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused later
            return inputs.astype(np.float32)
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.ndim == 4 and inputs.shape[3] in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(inputs, 3, 1))
    if inputs.ndim == 4 and inputs.shape[1] not in (1, 3, 4):
        raise DataError(
            f"images of {name} have shape {inputs.shape[1:]}: which axis is colour is not clear",
            "give (samples, height, width, channels) with 1, 3 or 4 channels, or floats, which "
            "are kept as they are",
        )
    return inputs


def _values(labels: Array, name: str) -> Array:
    if labels.dtype.kind not in "buif":
        raise DataError(
            f"labels of {name} are of type {labels.dtype}, not numbers",
            "regression needs numbers; for classes use task = 'classification'",
        )
    return labels.astype(np.float64).reshape(len(labels), -1)


def _classes(
    labels: Array, class_names: Sequence[str] | None, name: str
) -> tuple[Array, tuple[str, ...]]:
    labels = labels.reshape(len(labels), -1)
    if labels.shape[1] != 1:
        raise DataError(
            f"labels of {name} have {labels.shape[1]} values per sample",
            "give one class per sample, or use task = 'regression'",
        )
    labels = _texts(labels[:, 0])
    if labels.dtype.kind == "f":
        broken = ~(np.isfinite(labels) & (labels == np.round(labels)))
        if broken.any():
            row = int(broken.argmax())
            raise DataError(
                f"label {labels[row]} of sample {row} of {name} is not a class",
                "give whole numbers or texts, or use task = 'regression'",
            )
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "buiU":
        raise DataError(f"labels of {name} are of type {labels.dtype}", "give numbers or texts")
    if class_names is not None and labels.dtype.kind in "ui":
        low, high = labels.min(), labels.max()
        if low < 0 or high >= len(class_names):
            raise DataError(
                f"labels of {name} run from {low} to {high} but there are {len(class_names)} "
                "class names",
                "number the classes from 0, or leave class_names out",
            )
        return labels.astype(np.int64), tuple(str(each) for each in class_names)
    known, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(value) for value in known)


def _owners(owners: Array | None, name: str) -> Array | None:
    if owners is None:
        return None
    owners = _texts(owners)
    if owners.ndim != 1 or owners.dtype.kind not in "buiU":
        raise DataError(
            f"node values of {name} are {owners.ndim}-dimensional and of type {owners.dtype}",
            "give one whole number or text per sample",
        )
    return owners


def _texts(values: Array) -> Array:
    """Byte texts as texts, everything else as it is."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
