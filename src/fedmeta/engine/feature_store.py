"""Features that were computed before: of a pool by a body, in memory or in a file on disk.

A store has a row for every sample of a pool and fills in what is asked for and missing, so that
repeats and runs with other nodes share it. Where computing is dear (a body of at least 100,000
numbers) it is a file in $FEDMETA_CACHE, else ~/.cache/fedmeta, that only its owner may read and
later runs find; FEDMETA_CACHE=off keeps all in memory. Features say something about the samples
they are of: they stay on the machine of the samples, and deleting the folder loses time alone.

In memory, what would take more than half of the budget is a temporary file. Files are mapped, with
holes for rows that nobody asked for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import FedmetaError
from fedmeta.core.storage import private_folder

Array = npt.NDArray[Any]

VARIABLE = "FEDMETA_CACHE"
_WORTH_A_FILE = 100_000  # numbers of a body
_BLOCK = 1024  # rows after which what was computed is on disk


class FeatureStore:
    """Rows, and which of them are known.

    Args:
        rows: (N, …), an array or a mapped file.
        known: (N,) of bool, likewise.
    """

    def __init__(self, rows: Array, known: Array) -> None:
        self.rows, self.known = rows, known

    def filled(self, places: Array, compute: Callable[[Array], Array]) -> Array:
        """All rows, those at some places known.

        Args:
            places: which are wanted.
            compute: the rows at places. What two processes compute at once is the same.
        """
        missing = places[~self.known[places]]
        for start in range(0, len(missing), _BLOCK):
            part = missing[start : start + _BLOCK]
            self.rows[part] = compute(part)
            for each in (self.rows, self.known):  # rows reach the disk before they count as known
                if isinstance(each, np.memmap):
                    each.flush()
                if each is self.rows:
                    self.known[part] = True
        return self.rows


@lru_cache(maxsize=4)
def feature_store(
    digest: str, shape: tuple[int, ...], dtype: str, size: int, budget: int
) -> FeatureStore:
    """The store of a pool's features, with what earlier runs have left in it.

    Args:
        digest: of body and pool.
        shape: (N, *shape of a feature).
        dtype: of features, as NumPy writes it.
        size: numbers that the body has.
        budget: of memory, in bytes.
    """
    folder = cache_folder() if size >= _WORTH_A_FILE else None
    if folder is not None:
        with suppress(OSError, FedmetaError):  # no such folder, or no room: in memory then
            private_folder(folder)
            return FeatureStore(
                _mapped(folder / f"{digest}.rows", shape, dtype),
                _mapped(folder / f"{digest}.known", shape[:1], "|b1"),
            )
    if np.dtype(dtype).itemsize * int(np.prod(shape)) > budget / 2:
        with tempfile.TemporaryFile() as file:  # mapped, it lives as long as the mapping
            rows: Array = np.memmap(file, dtype, "w+", shape=shape)
    else:
        rows = np.zeros(shape, dtype)
    return FeatureStore(rows, np.zeros(shape[0], bool))


def cache_folder() -> Path | None:
    """Where features are kept between runs; None: nowhere."""
    given = os.environ.get(VARIABLE)
    if given == "off":
        return None
    base = given or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/fedmeta"
    return Path(base).expanduser() / "features"


def _mapped(path: Path, shape: tuple[int, ...], dtype: str) -> Array:
    """A file of exactly that size, mapped; its zeros are holes where it is new."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as file:
        os.truncate(file.fileno(), np.dtype(dtype).itemsize * int(np.prod(shape)))
        mapped: Array = np.memmap(file, dtype, "r+", shape=shape)
    return mapped
