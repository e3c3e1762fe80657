"""Arrays from an .npz file: never unpickled, and no larger than a file of its size may become."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmeta_edge.errors import EdgeError

_FLOOR, _RATIO = 512 * 2**20, 50  # bytes that any file may become; bytes for each of a larger one


def read_arrays(path: Path, wanted: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Those of the wanted arrays that a file has.

    Raises:
        EdgeError: it is no such file, or would take too much memory.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            names = [name for name in members if name in wanted]
            needed = sum(_promised(archive, members[name]) for name in names)
            if needed > _budget(path.stat().st_size):
                raise EdgeError(
                    f"{path} would take {needed / 1e9:.3g} GB of memory",
                    "if you trust it, set FEDMETA_INPUT_GB to a number of gigabytes",
                )
            return {name: _array(archive, members[name]) for name in names}
    except EdgeError:
        raise
    except Exception as error:  # damaged archives and headers raise all kinds
        reason = str(error).splitlines()[0].split(". ")[0] if str(error) else "it is empty"
        raise EdgeError(
            f"{path} is not an .npz file of plain arrays ({reason})",
            "save numbers and texts, not objects, by numpy.savez",
        ) from error


def _promised(archive: zipfile.ZipFile, name: str) -> int:
    """Bytes of an array as its header tells, and of the float32 that is made of it."""
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        reads = {(1, 0): np.lib.format.read_array_header_1_0}
        shape, _, dtype = reads.get(version, np.lib.format.read_array_header_2_0)(member)
        held = archive.getinfo(name).file_size - member.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > held:
        raise ValueError(f"{name} does not hold the array that its header tells of")
    return math.prod(shape) * (dtype.itemsize + 4)


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(name) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _budget(stored: int) -> int:
    try:
        return int(float(os.environ["FEDMETA_INPUT_GB"]) * 1e9)
    except (KeyError, ValueError, OverflowError):
        return max(_FLOOR, _RATIO * stored)
