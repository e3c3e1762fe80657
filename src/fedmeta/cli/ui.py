"""`fedmeta ui`: a local page to look at runs, and to watch a model adapt."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say
from fedmeta.core.errors import MissingExtraError, RunFolderError, SettingError, require

HOST, PORT = "127.0.0.1", 8484

PARAMETERS = (
    Parameter("folder", "Folder that holds the runs.", argument=True),
    Parameter("port", "Port; 0 takes a free one.", int, default=str(PORT), short="p"),
    Parameter("host", "Address to listen on.", default=f"{HOST}, this machine alone"),
    Parameter("no_browser", "Only say where the page is.", bool),
)


def run(values: Values) -> None:
    """Show a folder of runs on a local web page, and watch models adapt."""
    folder = Path(values["folder"])
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}", "name the folder that holds your runs")
    if (folder / "settings.json").is_file() or (folder / "comparison.json").is_file():
        raise RunFolderError(
            f"{folder} is a run itself", f"name the folder that it lies in: {folder.parent}"
        )
    host = values["host"] or HOST
    port = PORT if values["port"] is None else values["port"]
    require(0 <= port < 2**16, "port", port, "a whole number from 0 to 65535")
    try:
        from fedmeta.ui.app import server
    except ImportError as error:
        raise MissingExtraError(str(error.name).split(".")[0], "ui") from error
    page = server(folder, host)
    with _listening(host, port) as listener:
        _announce(folder, host, listener.getsockname()[1], browser=not values["no_browser"])
        with suppress(KeyboardInterrupt):
            page.run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # before anybody is told: a browser may be faster than the server
    except OSError as error:
        listener.close()
        raise SettingError(
            f"cannot listen on {host} port {port} ({error.strerror or error})",
            "give another --port (0 takes a free one) or --host",
        ) from error
    return listener


def _announce(folder: Path, host: str, port: int, *, browser: bool) -> None:
    from fedmeta.ui.security import is_loopback

    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    say(f"page     {address}  (runs in {folder}; stop with Ctrl-C)")
    if not is_loopback(host):
        say("warning: whoever can reach this address sees your runs and their samples")
    sys.stdout.flush()
    # A browser in the terminal would get in the way: there must be a screen for its window.
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if browser and (screen or sys.platform in ("darwin", "win32")):
        webbrowser.open(address)


COMMAND = Command("ui", PARAMETERS, run, "runs")

if __name__ == "__main__":
    COMMAND.main()
