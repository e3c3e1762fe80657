"""The checksum of a model file, which stands in its last entry of ONNX metadata.

The last 64 bytes are the SHA-256, in hexadecimal digits, of all that is before that entry.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from fedmeta_edge.errors import EdgeError

_KEY = b"fedmeta.sha256"
_DIGITS = 64
# Field 14 of the model, a pair of texts: tag and length, then tag and length of either.
_ENTRY = b"\x72" + bytes([4 + len(_KEY) + _DIGITS, 0x0A, len(_KEY)]) + _KEY + b"\x12\x40"


def checked_bytes(path: Path) -> tuple[bytes, str]:
    """The content of a model file and its checksum, which it must have.

    Raises:
        EdgeError: for a file that is missing, not one of ours, or not as it was written.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise EdgeError(f"{path} is not a regular file", "check the path")
            content = file.read()
    except OSError as error:
        raise EdgeError(f"cannot read {path} ({error.strerror})", "check the path") from error
    rest, digits = content[:-_DIGITS], content[-_DIGITS:]
    body, entry = rest[: -len(_ENTRY)], rest[-len(_ENTRY) :]
    if entry != _ENTRY:
        raise EdgeError(
            f"{path} does not end with fedmeta's checksum: it is cut short or of another kind",
            "export it again: fedmeta export RUN --adaptable --out FILE.onnx",
        )
    found = hashlib.sha256(body).hexdigest()
    if found.encode() != digits:
        raise EdgeError(
            f"{path} is damaged: its content does not have the checksum that it was written with",
            "copy it again, or export it again",
        )
    return content, found
