"""Your own arrays in an .npz file: `x`, the labels, and if you like whose sample each one is."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmeta.core.errors import DataError, nearest
from fedmeta.core.input_files import check_input, open_regular
from fedmeta.data.federation import TaskKind
from fedmeta.data.named_inputs import InputParts
from fedmeta.data.pool import Array, Pool, pool_from


def read_npz(
    path: Path,
    task: TaskKind = "classification",
    label: str | None = None,
    node: str | None = None,
    inputs: Sequence[str] = (),
    parts: InputParts | None = None,
) -> Pool:
    """The pool in an .npz file; never unpickles.

    Args:
        path: the file. Its array `x` holds the inputs (see `pool_from` for shapes and types).
        task: "classification" or "regression".
        label: name of the label array; None: "y", whose classes `class_names` may name.
        node: name of the array that says whose sample it is, if any.
        inputs: names of the arrays that are inputs, where there are several; empty: `x`.
        parts: the inputs of a model that the samples are for; None: as the arrays say.
    """
    label = label or "y"
    names = [*inputs, *(parts.names if parts is not None else ())] or ["x"]
    arrays = arrays_without_pickles(path, [*names, label] + ([node] if node else []), parts)
    rows = arrays.get("x")
    if parts is not None:
        rows = parts.rows(given_to(parts, arrays))
    elif inputs:
        parts, rows = InputParts.of({name: arrays[name] for name in inputs})
    assert rows is not None
    # class_names speaks of y; another label array has classes of its own.
    classes = arrays.get("class_names") if label == "y" else None
    pool = pool_from(
        rows,
        arrays[label],
        task=task,
        name=path.stem,
        owners=arrays[node] if node else None,
        class_names=None if classes is None else [str(name) for name in classes.reshape(-1)],
        origin=path.name,
    )
    return pool._replace(parts=parts)


def given_to(parts: InputParts, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Those arrays that are a model's inputs, or lengths of its sequences."""
    wanted = {*parts.names, *lengths_of(parts)}
    return {name: array for name, array in arrays.items() if name in wanted}


def lengths_of(parts: InputParts | None) -> list[str]:
    """Arrays that a file may have to say how many steps of sequences are real."""
    return [] if parts is None else [name for name in parts.asked if name.endswith("lengths")]


def arrays_without_pickles(
    path: Path, needed: list[str], parts: InputParts | None = None
) -> dict[str, Array]:
    """The needed arrays of the file, and where it has them `class_names` and lengths of sequences.

    What their headers promise is held against the file's budget before anything is unpacked.
    """
    try:
        with open_regular(path) as raw:
            if raw.read(6) == b"\x93NUMPY":
                raise DataError(f"{path} is a single array", "save it by numpy.savez with x and y")
            stored = raw.seek(0, 2)
            with zipfile.ZipFile(raw) as archive:
                members = {name.removesuffix(".npy"): name for name in archive.namelist()}
                for name in needed:
                    if name not in members:
                        raise DataError(f"{path} has no array {name!r}", nearest(name, members))
                wanted = sorted({*needed, "class_names", *lengths_of(parts)} & {*members})
                memory = sum(_promised(archive, members[each], each == "x") for each in wanted)
                check_input(path, memory, stored)
                return {each: _array(archive, members[each]) for each in wanted}
    except DataError:
        raise
    except Exception as error:  # what damaged archives and headers raise has no common parent
        # The first sentence only: numpy's longer texts advise to allow pickles, which is not safe.
        reason = str(error).splitlines()[0].split(". ")[0] if str(error) else "it is empty"
        raise DataError(
            f"{path} is not an .npz file of plain arrays ({reason})",
            "save numbers and texts, not objects, by numpy.savez",
        ) from None


def _promised(archive: zipfile.ZipFile, name: str, inputs: bool) -> int:
    """Bytes that an array and what is made of it take: bytes stay, other inputs become float32."""
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        reads = {(1, 0): np.lib.format.read_array_header_1_0}
        shape, _, dtype = reads.get(version, np.lib.format.read_array_header_2_0)(member)
        held = archive.getinfo(name).file_size - member.tell()
    count = math.prod(shape)
    if dtype.hasobject or count * dtype.itemsize > held:
        raise ValueError(f"{name} does not hold the array that its header tells of")
    if inputs and dtype == np.uint8:
        return count
    return count * (max(dtype.itemsize, 8) if inputs else dtype.itemsize + 16)


def _array(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
