"""Files from elsewhere: opened only if they are files, and read within a budget.

A small file can ask for a large memory: by compression, by a header that promises much, by a device
in its place. What a file becomes in memory may be as large as any honest one: 512 MiB, or fifty
times the file itself. $FEDMETA_INPUT_GB allows more.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from fedmeta.core.errors import DataError, SettingError, require

VARIABLE = "FEDMETA_INPUT_GB"
FLOOR = 512 * 2**20
"""Bytes in memory that any file may become."""
RATIO = 50
"""Bytes in memory for each byte of a larger file."""
_UNKNOWN = 8 * 2**30  # bytes of memory, where the system does not say


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; a device, a pipe or a folder is refused without waiting for it.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(None, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path) -> bytes:
    """All bytes of a regular file."""
    with open_regular(path) as file:
        return file.read()


def input_budget(stored: int) -> int:
    """The bytes in memory that a file may become.

    Args:
        stored: bytes on disk.

    Example:
        >>> input_budget(1000) == FLOOR, input_budget(2**30) == RATIO * 2**30
        (True, True)
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return max(FLOOR, RATIO * stored)
    gigabytes = -1.0
    with suppress(ValueError):
        gigabytes = float(given)
    require(0 < gigabytes < 2**30, VARIABLE, given, "a number of gigabytes greater than 0")
    return int(gigabytes * 1e9)


def check_input(what: object, needed: int, stored: int) -> None:
    """Refuse what would need more memory than its budget, before it is made.

    Args:
        what: the file, for the message.
        needed: bytes in memory.
        stored: bytes on disk.
    """
    if needed > (budget := input_budget(stored)):
        raise DataError(
            f"{what} would take {needed / 1e9:.3g} GB of memory, more than the "
            f"{budget / 1e9:.3g} GB that a file of its size may",
            f"if you trust it, allow more: set {VARIABLE} to a number of gigabytes",
        )


def available_memory() -> int:
    """Bytes of memory that this machine can still give."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _UNKNOWN


def check_memory(what: str, needed: int, remedy: str) -> None:
    """Refuse what the machine's memory cannot hold, before it is allocated.

    Args:
        what: for the message.
        needed: bytes, estimated.
        remedy: what to ask for instead.
    """
    if needed > (there := available_memory()):
        raise SettingError(
            f"{what} would take about {needed / 1e9:.3g} GB of memory, and there are "
            f"{there / 1e9:.3g} GB",
            remedy,
        )
