"""A comparison or search that can go on after an interruption: what was asked for, kept beside it.

asked.json is written before the first run. What has ended since is read again, what was interrupted
is continued or, where several runs are trained at once, trained anew: cell by cell, to the same
figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedmeta.core.errors import FedmetaError, RunFolderError
from fedmeta.core.storage import read_json, write_json, writing

FILE = "asked.json"
FORMAT = 1


@contextmanager
def begun(folder: Path, command: str, asked: Mapping[str, Any]) -> Iterator[None]:
    """Begin a study in a folder; what is refused before its first run leaves nothing there.

    Args:
        folder: its place; one that holds a study or runs already is refused.
        command: "compare" or "tune".
        asked: all that is needed to go on.
    """
    inside = ("comparison.json", "tuning.json", "settings.json", "runs", "trials", FILE)
    if any((folder / name).exists() for name in inside):
        known = (folder / FILE).exists()
        ways = "continue it with --resume" if known else "delete that folder"
        raise RunFolderError(f"{folder} holds runs already", f"{ways}, or choose another --out")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, {"format": FORMAT, "command": command, **asked})
    try:
        yield
    except FedmetaError:
        if not any((folder / name).exists() for name in ("runs", "trials")):
            for name in (FILE, ".lock"):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # it may have been there before, with other files
                folder.rmdir()
        raise


def is_declared(folder: Path, command: str) -> bool:
    """Whether a folder holds such a study."""
    file = folder / FILE
    return file.is_file() and read_json(file, "what was asked for").get("command") == command


def declared(folder: Path, command: str) -> dict[str, Any]:
    """What was asked for in a folder."""
    file = folder / FILE
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}", "check the path")
    if not file.is_file():
        raise RunFolderError(
            f"{folder} holds nothing that fedmeta {command} could go on with (no {FILE})",
            "name the folder that --out made, or start again with --out",
        )
    asked = read_json(file, "what was asked for")
    if asked.get("format") != FORMAT or asked.get("command") != command:
        raise RunFolderError(
            f"{file} was written by another command or version",
            f"continue it with fedmeta {str(asked.get('command'))[:20]}",
        )
    return asked
