"""What people do with runs in the list: give them a title and tags, and delete them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmeta.core.errors import DataError, RunFolderError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import read_json, write_json

FILE = "notes.json"
_LONGEST, _MOST_TAGS = 80, 12


@dataclass(frozen=True)
class Notes:
    """What people call a run, and words to find it by; kept in its folder as notes.json.

    Args:
        title: "" where it has none.
        tags: without spaces at their ends, each once.
    """

    title: str = ""
    tags: tuple[str, ...] = ()


NO_NOTES = Notes()


def read_notes(folder: Path) -> Notes:
    """The notes of a folder; none where there are none or they are damaged."""
    if not (folder / FILE).is_file():
        return Notes()
    try:
        stored = read_json(folder / FILE, "notes")
        return Notes(str(stored["title"]), tuple(map(str, stored["tags"])))
    except (RunFolderError, KeyError, TypeError):
        return Notes()


def write_notes(folder: Path, asked: Mapping[str, Any]) -> Notes:
    """Keep a title and tags.

    Args:
        folder: of the run, comparison or sequence.
        asked: `title` and `tags`, as the page sends them.

    Raises:
        DataError: they are no texts, or too long or too many.
    """
    title, tags = asked.get("title", ""), asked.get("tags", [])
    if not isinstance(title, str) or not isinstance(tags, list):
        raise DataError("the notes are not a title and tags", "reload the page")
    if not all(isinstance(each, str) for each in (title, *tags)):
        raise DataError("the notes are not texts", "reload the page")
    kept = Notes(title.strip(), tuple(dict.fromkeys(_words(tags))))
    long = any(len(each) > _LONGEST for each in (kept.title, *kept.tags))
    if long or len(kept.tags) > _MOST_TAGS:
        raise DataError(
            "the title or a tag is too long, or there are too many tags",
            f"use at most {_LONGEST} letters and {_MOST_TAGS} tags",
        )
    write_json(folder / FILE, asdict(kept))
    return kept


def delete(folder: Path, name: str, asked: Mapping[str, Any]) -> None:
    """Remove a run, comparison or sequence for good.

    Args:
        folder: of it.
        name: of it in the list.
        asked: has the same name as `confirmed`, or nothing happens.

    Raises:
        DataError: it was not confirmed.
        RunFolderError: a process is training in it.
    """
    if asked.get("confirmed") != name:
        raise DataError(f"deleting {name!r} was not confirmed", "confirm it on the page")
    folders = [folder, *(each.parent for each in folder.rglob("settings.json"))]
    if any(RunFolder(each).is_running() for each in folders):
        raise RunFolderError(f"{name!r} is running", "stop it first")
    shutil.rmtree(folder)


def _words(tags: Sequence[str]) -> list[str]:
    return [each.strip() for each in tags if each.strip()]
