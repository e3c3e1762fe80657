"""manifest.json: the SHA-256 of every file of a folder, written last and checked on reading.

It shows accidents, and changes by whoever did not know of it; against somebody who can write all of
the folder only a signature helps. While a run goes on there is none: checkpoints have digests of
their own. Folders of older versions have none either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from fedmeta.core.errors import RunFolderError
from fedmeta.core.input_files import open_regular, read_regular
from fedmeta.core.plain_values import parse_json

FILE = "manifest.json"
UNLISTED = (FILE, "notes.json")
"""Files of a folder that its manifest leaves out: itself, and what people note on the page."""
FORMAT = 1


def manifest_bytes(digests: Mapping[str, str]) -> bytes:
    """The content of a manifest, given the digests of files by name."""
    content = {"format": FORMAT, "sha256": dict(sorted(digests.items()))}
    return (json.dumps(content, indent=2) + "\n").encode()


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed(folder: Path) -> dict[str, str] | None:
    """The digests that a folder's manifest has; None where there is no manifest."""
    file = folder / FILE
    try:
        content = parse_json(read_regular(file))
        if content["format"] != FORMAT:
            raise RunFolderError(
                f"{file} has format {content['format']!r}, this version reads {FORMAT}",
                "use the version of fedmeta that wrote it",
            )
        return {str(name): str(value) for name, value in dict(content["sha256"]).items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{file} is damaged ({error})", "restore the folder from a copy"
        ) from error


def check_listed(path: Path, content: bytes | None = None) -> None:
    """Refuse a file that is not what the manifest beside it says; one that is not listed passes.

    Args:
        path: the file.
        content: what was read of it; None: it is read here.
    """
    known = listed(path.parent)
    if known is None or path.name not in known:
        return
    found = digest(path) if content is None else hashlib.sha256(content).hexdigest()
    if found != known[path.name]:
        raise RunFolderError(
            f"{path} is damaged: it is not what {FILE} says was written",
            f"restore it from a copy; if you changed it yourself, delete {path.parent / FILE}",
        )
