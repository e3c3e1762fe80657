"""The server that the page runs on."""

from __future__ import annotations

from pathlib import Path

import uvicorn

from fedmeta.ui.app import create_app


def server(root: Path, host: str = "127.0.0.1") -> uvicorn.Server:
    """A server for the page of a folder of runs; `run` it on a socket that listens.

    Args:
        root: the folder.
        host: that the socket is bound to.
    """
    config = uvicorn.Config(
        create_app(root, host),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,  # a page that polls shall not hold the end up
    )
    return uvicorn.Server(config)
