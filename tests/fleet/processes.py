"""Commands as real processes: started, looked for, killed with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SOON = 600.0  # seconds: a busy machine is no reason to fail
PATIENCE = 0.02  # seconds between two looks


class Fleet:
    """Processes of one test, all of which end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: str, *arguments: Any) -> subprocess.Popen[bytes]:
        """`fedmeta COMMAND` in the folder of the test."""
        log = (self.folder / f"{command}-{len(self._started)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"fedmeta.cli.{command}", *map(str, arguments)],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def said(self) -> str:
        """What all of them printed, for a message of failure."""
        logs = sorted(self.folder.rglob("*.log"))
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs
        )

    def end(self) -> None:
        """Kill whatever is left."""
        for process in self._started:
            kill_family(process.pid)
            process.wait(30)


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """A fleet whose processes end with the context."""
    one = Fleet(folder)
    try:
        yield one
    except BaseException:
        print(one.said())
        raise
    finally:
        one.end()


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                text = (entry / "stat").read_text()
                parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(
                    int(entry.name)
                )
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        queue += parents.get(one, [])
    return found


def kill_family(pid: int) -> None:
    """SIGKILL: no handler, no `finally`, nothing is flushed."""
    for one in family(pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def client_of(pid: int) -> int | None:
    """The process that Flower has started under another for a message, if it is there now."""
    for one in family(pid):
        with suppress(OSError):
            if b"flwr-clientapp" in Path(f"/proc/{one}/cmdline").read_bytes():
                return one
    return None


def awaited(what: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> Any:
    """Wait until something is true; a process that must not end meanwhile may be given."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        if found := what():
            return found
        if process is not None and process.poll() is not None:
            if found := what():
                return found
            raise AssertionError(f"a process ended with {process.returncode}")
        time.sleep(PATIENCE)
    raise AssertionError("it took too long")
