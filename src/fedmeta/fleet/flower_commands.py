"""Flower's own programs: their command lines, and starting and stopping them as processes.

Where a program is started, `home` is its $FLWR_HOME: its configuration and the apps it was sent.
`certs` is the folder of keys that `fedmeta certs` has made (ca.crt, at the platform server.pem and
server.key, at an edge its own key); None: neither encrypted nor authenticated.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmeta.core.errors import FedmetaError, MissingExtraError, SettingError
from fedmeta.core.storage import private_folder, write_bytes, writing

LINK = "fleet"  # what our SuperLink is called in Flower's configuration
DATABASE = "superlink.db"
_FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
_START, _STOP = 60.0, 10.0  # seconds that a program gets for it
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 8.0  # seconds before a program that ended is started again
_SOUND = 60.0  # seconds that a program must last to be taken for sound
_LOOK = 0.2  # seconds between two looks at whether a program has ended
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


class ProgramError(FedmetaError):
    """A program of Flower's that does not start, or ends when it should not."""


def superlink(folder: Path, host: str, port: int, certs: Path | None) -> list[str]:
    """The command that starts the platform's SuperLink, with its database in a folder."""
    keys = ["--insecure"]
    if certs is not None:
        keys = [
            *("--ssl-ca-certfile", _key_file(certs, "ca.crt")),
            *("--ssl-certfile", _key_file(certs, "server.pem")),
            *("--ssl-keyfile", _key_file(certs, "server.key")),
            "--enable-supernode-auth",
        ]
    return [
        *("flower-superlink", "--host", host, "--port", str(port)),
        *("--database", str((folder / DATABASE).absolute())),
        *("--disable-runtime-dependency-installation", *keys),
    ]


def supernode(name: str, home: Path, platform: str, certs: Path | None) -> list[str]:
    """The command that starts an edge's SuperNode.

    Args:
        name: of the edge.
        home: its folder.
        platform: HOST:PORT of the SuperLink, or of the gateway before it.
        certs: folder of the keys.
    """
    keys = ["--insecure"]
    if certs is not None:
        own = _key_file(certs, f"nodes/{name}")
        authority = _key_file(certs, "ca.crt")
        keys = ["--root-certificates", authority, "--auth-supernode-private-key", own]
    return [
        *("flower-supernode", "--superlink", platform, "--port", str(free_port())),
        *("--node-config", f'edge="{home.absolute()}"', *keys),
    ]


def worker(home: Path) -> list[str]:
    """The command that starts the process which does an edge's work (`worker`)."""
    return [sys.executable, "-m", "fedmeta.fleet.worker", str(home.absolute())]


def register(key: Path) -> list[str]:
    """The command that lets the edge with a public key join, under the name of the key's file."""
    what = ["flwr", "supernode", "register", str(key.absolute()), LINK]
    return [*what, "--name", key.stem, "--format", "json"]


def unregister(number: int) -> list[str]:
    """The command that takes this back; Flower gave the number."""
    return ["flwr", "supernode", "unregister", str(number), LINK]


def submit(app: Path, run: Path) -> list[str]:
    """The command that starts the run planned in a folder."""
    config = f'folder="{run.absolute()}"'
    return ["flwr", "run", str(app.absolute()), LINK, "--run-config", config]


def write_config(home: Path, port: int, certs: Path | None) -> None:
    """Tell `flwr` where our SuperLink is; `home` is its $FLWR_HOME."""
    how = f'root-certificates = "{_key_file(certs, "ca.crt")}"' if certs else "insecure = true"
    text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "127.0.0.1:{port}"\n'
    private_folder(home)
    write_bytes(home / "config.toml", f"{text}{how}\n".encode())


def environment(home: Path) -> dict[str, str]:
    """What every program of Flower's is started with; `home` is its $FLWR_HOME."""
    own = str(Path(sys.executable).parent)  # Flower finds its other programs by $PATH
    path = f"{own}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **_FLOWER, "FLWR_HOME": str(home.absolute()), "PATH": path}


def typed(command: Sequence[str], home: Path) -> str:
    """A command as a person would type it."""
    settings = {**_FLOWER, "FLWR_HOME": str(home.absolute())}
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    return f"{assignments} {shlex.join(command)}"


@contextmanager
def running(command: Sequence[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program and all that it starts, for as long as the context lasts; `log` gets its output."""
    with writing(log):
        private_folder(log.parent)
        output = log.open("ab")
    with output:
        process = subprocess.Popen(
            _found(command, environment(home)),
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all of it can be stopped at once
            umask=0o077,  # databases with tokens, sent apps, logs: nobody else's
            preexec_fn=_die_with_parent,
        )
    try:
        yield process
    finally:
        stop(process)


@contextmanager
def kept_running(command: Callable[[], Sequence[str]], home: Path, log: Path) -> Iterator[None]:
    """The same for a program that is started again whenever it ends, after growing pauses.

    A SuperLink takes nodes that were killed for online up to a minute longer, and refuses them
    meanwhile; their SuperNodes end then.

    Args:
        command: makes the command line, anew for every start.
        home: its $FLWR_HOME.
        log: gets its output.
    """
    over = threading.Event()

    def supervise() -> None:
        pause = _FIRST_PAUSE
        while not over.is_set():
            begun = time.monotonic()
            with running(command(), home, log) as process:
                while process.poll() is None and not over.wait(_LOOK):
                    pass
            sound = time.monotonic() - begun > _SOUND
            pause = _FIRST_PAUSE if sound else min(2 * pause, _LONGEST_PAUSE)
            over.wait(pause)

    _found(command(), environment(home))  # a missing program is said here, not in a thread
    # A program dies with the thread that has started it, so this one lives as long.
    thread = threading.Thread(target=supervise, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a program and its children to end, and end them."""
    for sign, patience in ((signal.SIGTERM, _STOP), (signal.SIGKILL, _STOP)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def finished(command: Sequence[str], home: Path) -> str:
    """Run a program to its end; returns what it printed."""
    try:
        done = subprocess.run(
            _found(command, environment(home)),
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * _START,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"{shlex.join(command[:3])} takes too long", "try again") from error
    if done.returncode != 0:
        said = " ".join((done.stdout + done.stderr).split())[-300:]
        raise ProgramError(f"{shlex.join(command[:3])} failed ({said})", "see --help")
    return done.stdout


def await_port(host: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a program that was started listens at a port."""
    end = time.monotonic() + _START
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ProgramError(
                f"Flower's SuperLink ended at once ({_last_line(log)})", f"see {log}"
            )
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.2)
    raise ProgramError(f"nothing listens at {host}:{port} after {_START:g} s", f"see {log}")


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Refuse a port that is in use, before anything is started."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise SettingError(
                f"cannot listen at {host}:{port} ({error.strerror})",
                "stop what runs there, or choose another --port",
            ) from error


def _key_file(certs: Path, name: str) -> str:
    path = (certs / name).absolute()
    if not path.is_file():
        raise SettingError(
            f"there is no {path}",
            "make it with fedmeta certs, copy it here, or write --insecure for a trial",
        )
    return str(path)


def _found(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    path = shutil.which(command[0], path=env["PATH"])
    if path is None:
        raise MissingExtraError(f"Flower's program {command[0]}", "flower")
    return [path, *command[1:]]


def _die_with_parent() -> None:
    """In the child: end when the command that started it does, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
