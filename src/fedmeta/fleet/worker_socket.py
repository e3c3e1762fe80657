"""How a process reaches the worker of an edge on its machine: a socket of its owner's alone."""

from __future__ import annotations

import hashlib
import os
import tempfile
from multiprocessing.connection import Client
from pathlib import Path


def socket_of(home: Path) -> Path:
    """Where the worker of an edge listens: a short path, since sockets allow no other."""
    digest = hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fedmeta-{os.getuid()}" / f"{digest}.socket"


def ask(home: Path, kind: str, facts: str, tensors: bytes) -> tuple[str, bytes] | None:
    """Let the worker of an edge answer a message; None: there is no worker.

    Args:
        home: the edge's folder.
        kind: of the message, see `transport.Kind`.
        facts, tensors: of the message, as a `Message` encodes them.
    """
    path = socket_of(home)
    if not path.exists() or path.parent.stat().st_uid != os.getuid():
        return None
    try:
        with Client(str(path), "AF_UNIX") as connection:
            for part in (kind.encode(), facts.encode(), tensors):
                connection.send_bytes(part)
            return connection.recv_bytes().decode(), connection.recv_bytes()
    except (EOFError, OSError):  # it was killed, now or before
        return None
