"""Where the files of a built-in data set may lie."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fedmeta.core.errors import DataError


def places(folder: str | None, *usual: str) -> tuple[Path, ...]:
    """The folders to look in, in this order: the given one, $FEDMETA_DATA, the `usual` ones.

    Example:
        >>> [place.as_posix() for place in places("mine", "/usr/share/datasets")][0]
        'mine'
    """
    named = (folder, os.environ.get("FEDMETA_DATA"), *usual)
    return tuple(Path(place).expanduser() for place in named if place)


def not_found(name: str, looked_in: Iterable[Path], remedy: str) -> DataError:
    """The error that says where was looked, and how to get the data."""
    looked = ", ".join(str(place) for place in looked_in) or "no folder"
    return DataError(
        f"the files of {name} were not found (looked in: {looked})",
        f"{remedy}, and name their folder by the setting 'folder' or by $FEDMETA_DATA",
    )
