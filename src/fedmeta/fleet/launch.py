"""A fleet as processes: the platform's SuperLink with its keys and its run, and the edges.

The run is in another process, seen through its folder: rounds as they come, and how it ended.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedmeta.core.errors import FedmetaError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import read_json, write_json
from fedmeta.fleet import flower_commands as programs
from fedmeta.fleet.flower_commands import ProgramError
from fedmeta.fleet.plan import FOLDER, Plan
from fedmeta.fleet.roster import Roster
from fedmeta.fleet.server_app import OUTCOME
from fedmeta.training.callbacks import Callback

APP = "app"
_REGISTERED = "registered.json"
_POLL, _SILENCE = 0.5, 60.0  # seconds between reads; without new rounds before Flower is asked


@dataclass(frozen=True)
class Host:
    """Where a platform runs.

    Args:
        folder: of the run; has a plan and, in its folder `fleet`, an app.
        address: host name or address to listen at.
        port: to listen at.
        certs: folder of the keys; None: neither encrypted nor authenticated.
    """

    folder: Path
    address: str
    port: int
    certs: Path | None

    @property
    def place(self) -> Path:
        """What only a fleet has, in the run folder."""
        return self.folder / FOLDER

    @property
    def home(self) -> Path:
        """Flower's own folder."""
        return self.place / "flower"

    def commands(self, keys: Sequence[Path]) -> list[list[str]]:
        """All that is started here, in Flower's own words."""
        return [
            programs.superlink(self.place, self.address, self.port, self.certs),
            *(programs.register(key) for key in keys),
            programs.submit(self.place / APP, self.folder),
        ]


@contextmanager
def running_platform(host: Host, keys: Sequence[Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A SuperLink that lets in the edges with these public keys, as long as the context lasts."""
    programs.check_free(host.address, host.port)
    if Roster.load(host.place) is None:
        # Nobody is known by Flower's numbers yet; a kill may have come between a key and its note.
        for left in (*host.place.glob(f"{programs.DATABASE}*"), host.place / _REGISTERED):
            left.unlink(missing_ok=True)
    programs.write_config(host.home, host.port, host.certs)
    command, log = host.commands([])[0], host.place / "superlink.log"
    with programs.running(command, host.home, log) as process:
        programs.await_port("127.0.0.1", host.port, process, log)
        _register_only(host, keys)
        yield process


@contextmanager
def running_edge(
    name: str, home: Path, platform: str, certs: Path | None
) -> Iterator[subprocess.Popen[bytes]]:
    """An edge's SuperNode (see `supernode`) and its worker, as long as the context lasts."""
    node = programs.supernode(name, home, platform, certs)
    flower, worker = home / "flower", programs.worker(home)
    with (
        programs.running(worker, flower, home / "worker.log"),
        programs.running(node, flower, home / "supernode.log") as process,
    ):
        yield process


@contextmanager
def lasting_edge(name: str, home: Path, platform: str, certs: Path | None) -> Iterator[None]:
    """The same with a SuperNode that is started again whenever it ends."""

    def node() -> list[str]:
        return programs.supernode(name, home, platform, certs)

    flower, worker = home / "flower", programs.worker(home)
    with (
        programs.running(worker, flower, home / "worker.log"),
        programs.kept_running(node, flower, home / "supernode.log"),
    ):
        yield


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
    seen = len(RunFolder(host.folder).history())
    programs.finished(programs.submit(host.place / APP, host.folder), host.home)

    def is_alive() -> bool:
        listing = ["flwr", "list", programs.LINK, "--format", "json"]
        return is_running(programs.finished(listing, host.home))

    follow(host.folder, seen, callbacks, superlink, is_alive)


def follow(
    folder: Path,
    seen: int,
    callbacks: Sequence[Callback],
    superlink: subprocess.Popen[bytes],
    is_alive: Callable[[], bool],
) -> None:
    """Follow a run that the platform's process writes, to its end.

    Args:
        folder: of the run.
        seen: rounds that it had before.
        callbacks: called after every further round.
        superlink: that carries it.
        is_alive: asks Flower whether the run still goes on; asked only in long silence.

    Raises:
        FedmetaError: that ended it, as the platform's process said.
    """
    rounds = int(Plan.load(folder).table.get("training", {}).get("rounds", 100))
    outcome, started, last = folder / FOLDER / OUTCOME, False, time.monotonic()
    while True:
        ended = outcome.exists()  # looked at first: rounds that were written before it are read
        history = RunFolder(folder).history()
        if history and not started:
            started = True
            for callback in callbacks:
                callback.on_start(seen + 1, rounds)
        for record in history[seen:]:
            last = time.monotonic()
            for callback in callbacks:
                callback.on_round(record)
        seen = max(seen, len(history))
        if ended:
            break
        if superlink.poll() is not None:
            raise ProgramError("Flower's SuperLink has ended", "go on with --resume")
        if time.monotonic() - last > _SILENCE:
            last = time.monotonic()
            if not is_alive() and not outcome.exists():
                raise ProgramError("the platform's process has ended", "go on with --resume")
        time.sleep(_POLL)
    told = read_json(outcome, "outcome of the run")
    if told["code"] != 0:
        error = FedmetaError(told["problem"], told["remedy"])
        error.exit_code = told["code"]
        raise error


def is_running(listing: str) -> bool:
    """Whether the newest run in what `flwr list --format json` printed still goes on."""
    runs = json.loads(listing).get("runs", [])
    return bool(runs) and not str(runs[0].get("status", "")).startswith("finished")
