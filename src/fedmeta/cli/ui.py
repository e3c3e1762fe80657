"""`fedmeta ui`: a local page to look at runs, and to watch a model adapt."""

from __future__ import annotations

import os
import secrets
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
    Parameter("token", "Who opens the page must know this; auto draws one.", default="none here"),
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
    token = _token(values["token"], host)
    page = server(folder, host, token)
    with _listening(host, port) as listener:
        here = listener.getsockname()[1]
        _announce(folder, host, here, token, browser=not values["no_browser"])
        with suppress(KeyboardInterrupt):
            page.run(sockets=[listener])


def _token(given: str | None, host: str) -> str | None:
    """What who opens the page must know; off this machine there has to be one."""
    from fedmeta.ui.security import is_loopback

    if given is None:
        if not is_loopback(host):
            raise SettingError(
                f"{host} can be reached from elsewhere, where anybody could see your runs",
                "give --token auto, or a token of your own",
            )
        return None
    if given == "auto":
        return secrets.token_urlsafe(24)
    plain = len(given) >= 16 and all(c.isascii() and (c.isalnum() or c in "-_") for c in given)
    require(plain, "token", f"{given[:2]}…", "auto, or at least 16 letters, digits, - or _")
    return given


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


def _announce(folder: Path, host: str, port: int, token: str | None, *, browser: bool) -> None:
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    if token is not None:
        address += f"?token={token}"
    say(f"page     {address}  (runs in {folder}; stop with Ctrl-C)")
    if token is not None:
        say("warning: it is not encrypted; whoever can listen on the way sees runs and the token")
    sys.stdout.flush()
    # A browser in the terminal would get in the way: there must be a screen for its window.
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if browser and (screen or sys.platform in ("darwin", "win32")):
        webbrowser.open(address)


COMMAND = Command("ui", PARAMETERS, run, "runs")

if __name__ == "__main__":
    COMMAND.main()
