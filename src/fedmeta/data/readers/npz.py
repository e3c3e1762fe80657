"""Your own arrays in an .npz file: `x`, the labels, and if you like whose sample each one is."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmeta.core.errors import DataError, nearest
from fedmeta.data.federation import TaskKind
from fedmeta.data.pool import Array, Pool, pool_from


def read_npz(
    path: Path,
    task: TaskKind = "classification",
    label: str | None = None,
    node: str | None = None,
    _features: Sequence[str] | None = None,  # of tables: arrays have no columns to choose
) -> Pool:
    """The pool in an .npz file; never unpickles.

    Args:
        path: the file. Its array `x` holds the inputs (see `pool_from` for shapes and types).
        task: "classification" or "regression".
        label: name of the label array; None: "y", whose classes `class_names` may name.
        node: name of the array that says whose sample it is, if any.
    """
    label = label or "y"
    arrays = arrays_without_pickles(path, ["x", label] + ([node] if node else []))
    # class_names speaks of y; another label array has classes of its own.
    names = arrays.get("class_names") if label == "y" else None
    return pool_from(
        arrays["x"],
        arrays[label],
        task=task,
        name=path.stem,
        owners=arrays[node] if node else None,
        class_names=None if names is None else [str(name) for name in names],
        origin=path.name,
    )


def arrays_without_pickles(path: Path, needed: list[str]) -> dict[str, Array]:
    """The needed arrays of the file, and `class_names` where it has them."""
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{path} is a single array", "save it by numpy.savez with x and y")
            for name in needed:
                if name not in file.files:
                    raise DataError(f"{path} has no array {name!r}", nearest(name, file.files))
            return {name: file[name] for name in {*needed, "class_names"} & {*file.files}}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        # The first sentence only: numpy's longer texts advise to allow pickles, which is not safe.
        reason = str(error).splitlines()[0].split(". ")[0] if str(error) else "it is empty"
        raise DataError(
            f"{path} is not an .npz file of plain arrays ({reason})",
            "save numbers and texts, not objects, by numpy.savez",
        ) from None
