"""A pool: labelled samples before they are dealt out to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Task, TaskKind

if TYPE_CHECKING:
    from fedmeta.data.encoding import Encoding
    from fedmeta.data.named_inputs import InputParts

Array = npt.NDArray[Any]


_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


class Pool(NamedTuple):
    """Labelled samples, and whose they are where the data say so.

    Args:
        inputs: (N, *shape), uint8 (images channels first) or float32.
        labels: (N,) int64 class numbers, or (N, outputs) float64 values for regression.
        class_names: names of the classes in the order of their numbers; empty for regression.
        name: what the data are called, for people.
        owners: (N,) whose sample each one is (numbers or texts), or None.
        origin: the file or files they came from, for people.
        features: names of the inputs of a table, in order; empty for arrays and images.
        owner_names: what `owners` are places in, in order; empty: they speak for themselves.
        times: (N,) when samples were taken, for an ordered split, or None.
        encoding: how the columns of a table became inputs; gaps in these are NaN still.
        remarks: what people should know of how they were read.
        parts: what a row of `inputs` consists of, where samples have several inputs.
    """

    inputs: Array
    labels: Array
    class_names: tuple[str, ...]
    name: str
    owners: Array | None = None
    origin: str = ""
    features: tuple[str, ...] = ()
    owner_names: tuple[str, ...] = ()
    times: Array | None = None
    encoding: Encoding | None = None
    remarks: tuple[str, ...] = ()
    parts: InputParts | None = None

    @property
    def task(self) -> Task:
        """What a model has to return for these labels."""
        if self.class_names:
            return Task("classification", len(self.class_names), self.class_names)
        return Task("regression", self.labels.shape[1])

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the samples came from and how they were read, as notes for people."""
        origin = (f"{len(self.labels)} samples from {self.origin}",) if self.origin else ()
        return origin + self.remarks

    @property
    def owner_texts(self) -> Array | None:
        """(N,) whose sample each one is, by name, or None."""
        if self.owners is None:
            return None
        return np.array(self.owner_names)[self.owners] if self.owner_names else self.owners

    def only(self, classes: Sequence[int]) -> Pool:
        """The samples of these classes; class numbers and names stay as they are.

        Example:
            >>> pool = Pool(np.eye(3), np.array([0, 1, 2]), ("a", "b", "c"), "x")
            >>> pool.only([1, 2]).labels.tolist(), pool.only([1, 2]).task.outputs
            ([1, 2], 3)
        """
        kept = np.isin(self.labels, classes)
        owners, times = (None if each is None else each[kept] for each in (self.owners, self.times))
        return self._replace(
            inputs=self.inputs[kept], labels=self.labels[kept], owners=owners, times=times
        )


def as_array(values: npt.ArrayLike | torch.Tensor) -> Array:
    """Values as a numpy array; tensors of types that numpy lacks become float32."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    if values.is_floating_point() and values.dtype not in _NUMPY_FLOATS:
        values = values.float()
    return values.numpy()


def pool_from(
    inputs: Array,
    labels: Array,
    *,
    task: TaskKind,
    name: str,
    owners: Array | None = None,
    class_names: Sequence[str] | None = None,
    origin: str = "",
    features: Sequence[str] = (),
) -> Pool:
    """Arrays as people have them, checked and brought into a pool's form.

    Arrays of Python objects are taken for what they hold, if all of it is of one kind.

    Args:
        inputs: (N, *shape) numbers; see `normalised_inputs` for what becomes of them.
        labels: (N,) numbers or texts; for regression (N,) or (N, outputs) numbers. Classes are
            numbered from 0 in sorted order, unless `class_names` already says what they mean.
        task: "classification" or "regression".
        name: what the data are called, for people and for error messages.
        owners: (N,) whole numbers or texts that say whose sample it is.
        class_names: the name of class 0, 1, …, for labels that are such numbers.
        origin: the file they came from, for people.
        features: names of the columns of `inputs`, if they have any.

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
    inputs, owners = normalised_inputs(inputs, name), _owners(owners, name)
    return Pool(inputs, numbers, classes, name, owners, origin, tuple(features))


def normalised_inputs(inputs: Array, name: str = "own data") -> Array:
    """Inputs as people have them in the form that pools hold and models are trained on.

    Args:
        inputs: (N, *shape) numbers, N may be 0. uint8 images, (N, H, W) or (N, H, W, channels),
            are moved to channels first; everything that is not uint8 becomes float32 and keeps
            its shape. Byte images whose last axis is 1, 3 or 4 long are taken for channels last,
            so do not pass images that narrow through here twice.
        name: what the data are called, for error messages.

    Example:
        >>> normalised_inputs(np.zeros((5, 8, 9, 3), np.uint8)).shape
        (5, 3, 8, 9)
    """
    inputs = _unboxed(inputs, "inputs", name)
    if inputs.dtype.kind not in "buif":
        raise DataError(f"inputs of {name} are of type {inputs.dtype}", "give numbers")
    if inputs.ndim == 1:
        raise DataError(f"inputs of {name} have one axis", "give (samples, features)")
    if inputs.dtype != np.uint8:
        with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused later
            return inputs.astype(np.float32, copy=False)
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
    labels = _unboxed(labels, "labels", name)
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
    labels = _texts(_unboxed(labels[:, 0], "labels", name))
    if labels.dtype.kind == "f":
        if (row := _first_broken(labels)) is not None:
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
    owners = _texts(_unboxed(owners, "node values", name))
    wanted = "give one whole number or text per sample"
    if owners.ndim != 1 or owners.dtype.kind not in "buifU":
        raise DataError(
            f"node values of {name} are {owners.ndim}-dimensional and of type {owners.dtype}",
            wanted,
        )
    if owners.dtype.kind != "f":
        return owners
    if (row := _first_broken(owners)) is not None:
        raise DataError(f"node value {owners[row]} of sample {row} of {name} is no node", wanted)
    return owners.astype(np.int64)


def _first_broken(values: Array) -> int | None:
    """Where the first float is that does not stand for one whole number, if any."""
    # From here on several whole numbers share one float: two nodes or classes might become one.
    limit = 2.0 ** min(np.finfo(values.dtype).nmant + 1, 53)
    whole = np.isfinite(values) & (values == np.round(values)) & (np.abs(values) < limit)
    return None if whole.all() else int(whole.argmin())


_KINDS: tuple[tuple[tuple[type, ...], type[np.generic]], ...] = (
    ((str,), np.str_),
    ((bytes,), np.bytes_),
    ((bool, np.bool_), np.bool_),  # before int, of which Python takes bool for a kind
    ((int, np.integer), np.int64),
    ((float, np.floating), np.float64),
)


def _unboxed(values: Array, what: str, name: str) -> Array:
    """An array of Python objects as an array of what they are; any other as it is.

    Example:
        >>> _unboxed(np.array(["a", "bc"], dtype=object), "labels", "x").dtype.str[1:]
        'U2'
    """
    if values.dtype.kind != "O":
        return values
    types = {type(each) for each in values.flat}
    kinds = {
        next((kind for known, kind in _KINDS if issubclass(each, known)), None) for each in types
    }
    if kinds == {np.int64, np.float64}:
        kinds = {np.float64}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        try:
            return values.astype(kind)
        except OverflowError:
            pass  # refused below, like any other object
    found = ", ".join(sorted(each.__name__ for each in types))
    raise DataError(
        f"{what} of {name} are objects of type {found}",
        "give only texts, only numbers that fit 64 bits, or only True and False",
    )


def _texts(values: Array) -> Array:
    """Byte texts as texts, everything else as it is."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
