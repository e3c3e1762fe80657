"""A process that stays: it does an edge's work, so that Flower's need not load PyTorch every time.

Flower starts a new process for every message. Where a worker of the edge is running, that process
only hands the message on (`worker_socket`); where none is, it does the work itself. Either way the
same functions run, and what counts lies on disk.

    python -m fedmeta.fleet.worker FOLDER
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from fedmeta.fleet.edge import answer
from fedmeta.fleet.edge_job import KeptJob
from fedmeta.fleet.worker_socket import socket_of


def serve(home: Path) -> None:
    """Answer messages one after the other until this process is stopped."""
    path = socket_of(home)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    about = path.parent.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise SystemExit(f"{path.parent} is not this user's alone: remove it")
    path.unlink(missing_ok=True)  # of a worker that was killed
    kept = KeptJob()
    with Listener(str(path), "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                _answer(connection, home, kept)


def _answer(connection: Connection, home: Path, kept: KeptJob) -> None:
    try:
        kind, facts = connection.recv_bytes().decode(), connection.recv_bytes().decode()
        reply, tensors = answer(home, kind, facts, connection.recv_bytes(), kept)
        connection.send_bytes(reply.encode())
        connection.send_bytes(tensors)
    except (EOFError, ConnectionError):
        pass  # whoever asked was killed; the reply is on disk and will be asked for again


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
