"""Data sets of the Hugging Face hub, divided among nodes by any partitioner of `flwr-datasets`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmeta.core.errors import DataError, MissingExtraError, SettingError, nearest
from fedmeta.data.pool import Array

Arrays = dict[str, Array]


def read_huggingface(
    name: str,
    *,
    split: str = "train",
    label: str | None = None,
    partitioner: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Arrays:
    """A data set as the arrays of an .npz file: x, y, and node where it was partitioned.

    Images become bytes, (N, H, W) where all are grey, else (N, H, W, 3). Of a table all columns of
    numbers become features. Code of the data set's author is never run.

    Args:
        name: as on the hub ("ylecun/mnist"), or a local folder that `datasets` can load.
        split: which part of it.
        label: the label column; None: "label", or the only column of class labels.
        partitioner: a class of `flwr_datasets.partitioner`; None: no nodes.
        options: its arguments.

    Raises:
        DataError: when it cannot be fetched, or holds neither images nor numbers.
    """
    try:
        import datasets
        import flwr_datasets.partitioner as partitioners
    except ImportError:
        raise MissingExtraError("flwr-datasets", "huggingface") from None
    try:
        loaded = datasets.load_dataset(name, split=split)
    # What it raises has no common parent: connections, names and formats each have their own.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"data set {name!r}, split {split!r}, cannot be loaded ({reason})",
            "check name, split and connection; offline only local folders and what was fetched "
            "before can be read",
        ) from error
    column = _label_column(loaded, label, name)
    if partitioner is None:
        return _arrays(loaded, column, name)
    divider = _partitioner(vars(partitioners), partitioner, options or {})
    divider.dataset = loaded
    try:
        parts = [divider.load_partition(number) for number in range(divider.num_partitions)]
    except (ValueError, KeyError) as error:
        raise DataError(f"{partitioner} cannot deal out {name} ({error})", "change it") from error
    arrays = [_arrays(part, column, name) for part in parts if len(part)]
    sizes = [len(part) for part in parts]
    together = {key: np.concatenate([each[key] for each in arrays]) for key in ("x", "y")}
    named = {key: each for key, each in arrays[0].items() if key == "class_names"}
    return {**together, **named, "node": np.repeat(np.arange(len(parts)), sizes)}


def _partitioner(known: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> Any:
    classes = {
        each.__name__: each
        for each in known.values()
        if inspect.isclass(each) and hasattr(each, "load_partition")
    }
    classes.pop("Partitioner", None)  # what they all are
    if name not in classes:
        raise SettingError(f"partitioner is {name!r}", nearest(name, classes))
    wanted = inspect.signature(classes[name])
    try:
        wanted.bind(**options)
        return classes[name](**options)
    except (TypeError, ValueError) as error:
        shown = ", ".join(wanted.parameters)
        raise SettingError(f"{name} refuses its options ({error})", f"it takes {shown}") from error


def _label_column(loaded: Any, label: str | None, name: str) -> str:
    from datasets import ClassLabel

    if label is None:
        named = [column for column, kind in loaded.features.items() if isinstance(kind, ClassLabel)]
        label = "label" if "label" in loaded.features or len(named) != 1 else named[0]
    if label not in loaded.features:
        raise DataError(f"{name} has no column {label!r}", nearest(label, loaded.features))
    return label


def _arrays(part: Any, label: str, name: str) -> Arrays:
    from datasets import ClassLabel, Image

    features = part.features
    found: Arrays = {"y": np.asarray(part[label][:])}
    if isinstance(features[label], ClassLabel):
        found["class_names"] = np.asarray(features[label].names)
    pictures = [column for column, kind in features.items() if isinstance(kind, Image)]
    if pictures:
        return {"x": _images(part[pictures[0]][:], name), **found}
    numbers = [
        column
        for column, kind in features.items()
        if column != label and str(getattr(kind, "dtype", "")).startswith(("int", "uint", "float"))
    ]
    if not numbers:
        raise DataError(f"{name} has neither images nor columns of numbers", "use another one")
    table = np.stack([np.asarray(part[column][:], np.float32) for column in numbers], axis=1)
    return {"x": table, **found}


def _images(pictures: list[Any], name: str) -> Array:
    mode = "L" if {picture.mode for picture in pictures} <= {"L", "1"} else "RGB"
    arrays = [np.asarray(picture.convert(mode)) for picture in pictures]
    shapes = {array.shape[:2] for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"images of {name} have {len(shapes)} different sizes", "use one whose images agree"
        )
    return np.stack(arrays)
