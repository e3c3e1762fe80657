"""The command line: `fedmeta COMMAND`, or `python -m fedmeta.cli.COMMAND` with the core alone."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from fedmeta.cli.argparse_shell import run_argparse
from fedmeta.cli.command import Command
from fedmeta.core.errors import FedmetaError
from fedmeta.core.printable import printable

_NAMES = (
    *(
        "train",
        "adapt",
        "predict",
        "export",
        "evaluate",
        "compare",
        "tune",
        "calibrate",
        "importance",
        "report",
        "data",
    ),
    *("diagnose", "sequence", "gate", "reproduce", "fleet", "certs", "platform", "edge", "ui"),
)


def commands() -> list[Command]:
    """All commands, in the order in which --help lists them."""
    return [import_module(f"fedmeta.cli.{name}").COMMAND for name in _NAMES]


def main() -> NoReturn:
    """The program `fedmeta`, also `python -m fedmeta`: typer where it is, argparse where not."""
    shell = run_argparse
    if importlib.util.find_spec("typer") is not None:
        from fedmeta.cli.typer_shell import run_typer as shell
    sys.exit(guarded(shell, commands(), sys.argv[1:]))


def guarded(
    shell: Callable[[Sequence[Command], Sequence[str]], None],
    commands: Sequence[Command],
    arguments: Sequence[str],
) -> int:
    """Run a shell; what a person can mend is told in one line, and becomes an exit code."""
    try:
        shell(commands, arguments)
        sys.stdout.flush()
    except FedmetaError as error:
        return _fail(error.for_shell, error.exit_code)
    except KeyboardInterrupt as stop:
        return _fail(": ".join(["interrupted", *map(str, stop.args)]), 130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _drop_output()
        return 0
    except OSError as error:
        if error.errno == errno.ENOSPC and not error.filename:  # standard output is a full disk
            _drop_output()
        where = f" {error.filename}" if error.filename else ""
        return _fail(
            f"the system refused{where} ({error.strerror or error}): check path and disk", 2
        )
    return 0


def _drop_output() -> None:
    """Let go of what was printed but cannot be written, or Python complains at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(printable(f"fedmeta: {message}"), file=sys.stderr)
    return code
