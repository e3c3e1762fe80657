"""The command line as tests call it: in this process, through either shell, or as a program."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmeta.cli import commands, guarded
from fedmeta.cli.argparse_shell import run_argparse
from fedmeta.cli.typer_shell import run_typer

COMMANDS = commands()
SHELLS = {"typer": run_typer, "plain": run_argparse}
_PROGRESS = re.compile(r"\S.*: round \d+/\d+")


@dataclass(frozen=True)
class Outcome:
    """What a call left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of complaint; anything else beside progress fails the test."""
        lines = [line for line in self.err.splitlines() if not _PROGRESS.match(line)]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("fedmeta: "), self.err
        return lines[0].removeprefix("fedmeta: ")


def call(line: str | Sequence[str], shell: str = "typer") -> Outcome:
    """Run a command line in this process."""
    arguments = shlex.split(line) if isinstance(line, str) else list(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = guarded(SHELLS[shell], COMMANDS, arguments)
        except SystemExit as stop:  # --help and --version of argparse
            code = int(stop.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def succeed(line: str | Sequence[str], shell: str = "typer") -> str:
    """Run a command line that must work; returns what it printed."""
    outcome = call(line, shell)
    assert outcome.code == 0, outcome.err
    return outcome.out


def spawn(
    arguments: Sequence[str],
    folder: Path,
    module: str = "fedmeta",
    prelude: str = "",
    measured: bool = True,
) -> Outcome:
    """Run a module as a program of its own, with some code before it if need be.

    A program that cannot write must not be `measured`: neither could coverage.
    """
    kept = {k: v for k, v in os.environ.items() if measured or not k.startswith("COVERAGE")}
    code = f"{prelude}\nimport runpy\nrunpy.run_module({module!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def snapshot(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder, by relative path (code caches aside)."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
