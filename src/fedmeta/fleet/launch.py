"""A fleet as processes: the platform's SuperLink with its keys and its run, and the edges."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedmeta.core.storage import read_json, write_json, writing
from fedmeta.fleet import flower_commands as programs
from fedmeta.fleet.flower_commands import Credentials
from fedmeta.fleet.follow import RunFollower, is_running
from fedmeta.fleet.plan import FOLDER
from fedmeta.fleet.server_app import OUTCOME
from fedmeta.training.callbacks import Callback

APP, LOG = "app", "superlink.log"
_REGISTERED = "registered.json"


@dataclass(frozen=True)
class Host:
    """Where a platform runs.

    Args:
        folder: of the run; has a plan and, in its folder `fleet`, an app.
        address: host name or address to listen at.
        port: to listen at.
        credentials: None: neither encrypted nor authenticated.
    """

    folder: Path
    address: str
    port: int
    credentials: Credentials | None

    @property
    def place(self) -> Path:
        """What only a fleet has, in the run folder."""
        return self.folder / FOLDER

    @property
    def home(self) -> Path:
        """Flower's own folder."""
        return self.place / "flower"

    @property
    def log(self) -> Path:
        """What Flower says."""
        return self.place / LOG

    def commands(self, keys: Sequence[Path]) -> list[list[str]]:
        """All that is started here, in Flower's own words."""
        return [
            programs.superlink(self.place, self.address, self.port, self.credentials),
            *(programs.register(key) for key in keys),
            programs.submit(self.place / APP, self.folder),
        ]


@contextmanager
def running_platform(host: Host, keys: Sequence[Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A SuperLink that lets in the edges with these public keys, as long as the context lasts."""
    programs.check_free(host.address, host.port)
    with writing(host.place):
        host.place.mkdir(parents=True, exist_ok=True)
    programs.write_config(host.home, host.port, host.credentials)
    command, *_ = host.commands([])
    with programs.running(command, host.home, host.log) as process:
        programs.await_port("127.0.0.1", host.port, process, host.log)
        _register_only(host, keys)
        yield process


@contextmanager
def running_edge(
    name: str, home: Path, platform: str, credentials: Credentials | None
) -> Iterator[subprocess.Popen[bytes]]:
    """An edge's SuperNode and its worker, as long as the context lasts.

    Args:
        name: of the edge.
        home: its folder.
        platform: HOST:PORT to join.
        credentials: None: neither encrypted nor authenticated.
    """
    node = programs.supernode(name, home, platform, programs.free_port(), credentials)
    flower, worker = home / "flower", programs.worker(home)
    with (
        programs.running(worker, flower, home / "worker.log"),
        programs.running(node, flower, home / "supernode.log") as process,
    ):
        yield process


def _register_only(host: Host, keys: Sequence[Path]) -> None:
    """Let in these keys and no others: the SuperLink's database remembers those of before."""
    file = host.place / _REGISTERED
    known = dict(read_json(file, "registered keys")) if file.exists() else {}
    wanted = {key.read_text(encoding="utf-8").strip(): key for key in keys}
    for text in [each for each in known if each not in wanted]:
        programs.finished(programs.unregister(known.pop(text)), host.home)
        write_json(file, known)
    for text, key in wanted.items():
        if text not in known:
            said = programs.finished(programs.register(key), host.home)
            known[text] = json.loads(said[said.index("{") :])["node-id"]
            write_json(file, known)


def run_to_end(
    host: Host, superlink: subprocess.Popen[bytes], callbacks: Sequence[Callback]
) -> None:
    """Start the run, or go on with it, and follow it to its end."""
    (host.place / OUTCOME).unlink(missing_ok=True)
    follower = RunFollower(host.folder, callbacks)
    programs.finished(programs.submit(host.place / APP, host.folder), host.home)

    def is_alive() -> bool:
        listing = ["flwr", "list", programs.LINK, "--format", "json"]
        return is_running(programs.finished(listing, host.home))

    follower.until_end(superlink, is_alive)
