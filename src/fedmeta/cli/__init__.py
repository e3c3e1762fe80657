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
from fedmeta.cli.command import Command, Values
from fedmeta.core.errors import FedmetaError
from fedmeta.core.printable import printable

_ABOUT = {
    "train": "Train a meta-model on the source nodes and evaluate it on the targets.",
    "adapt": (
        "Adapt a meta-model to a device's samples: measured on a part of them, then done with all."
    ),
    "predict": (
        "Predict every row of a file: its columns in its order, with the model's answers added."
    ),
    "export": "Write a model as an ONNX file or as C code, for devices without PyTorch.",
    "evaluate": "Evaluate a trained meta-model on target nodes, before and after adaptation.",
    "compare": "Compare algorithms on the same nodes, splits and initial weights.",
    "tune": "Search hyper-parameters on a held-out fifth of the source nodes, never on targets.",
    "calibrate": (
        "Count anew how sure a run's model may be, by models that have not seen the counting nodes."
    ),
    "importance": "Estimate how much each parameter of a run matters, and store it with the run.",
    "report": "Write the self-contained report.html of a run or comparison.",
    "data": (
        "Check a table up and describe its federation: columns, nodes, classes. Or get public data."
    ),
    "diagnose": (
        "Hold a run against the convergence theory: constants, penalties, bounds, verdicts."
    ),
    "sequence": "Learn tasks one after the other and measure what is forgotten.",
    "gate": (
        "Compare a candidate with the models in service on earlier tasks; exit code 4: blocked."
    ),
    "reproduce": (
        "Run the experiments of the paper and our own, cell by cell, and keep what they give."
    ),
    "fleet": "Try a whole fleet on this machine: a platform and edges as processes, over Flower.",
    "certs": "Make the certificates and keys of a trial fleet, revoke a key, write the fence.",
    "platform": "Train over edges on other machines, over Flower.",
    "edge": "Let this device's data take part in a platform's training, over Flower.",
    "ui": "Show a folder of runs on a local web page, and watch models adapt.",
}
"""What --help lists, in this order: every command's name, and what it says of itself."""

_OVERVIEWS: tuple[list[str], ...] = ([], ["--help"], ["-h"], ["--version"])


def commands() -> list[Command]:
    """All commands, in the order in which --help lists them."""
    return [import_module(f"fedmeta.cli.{name}").COMMAND for name in _ABOUT]


def overview() -> list[Command]:
    """What --help lists, without loading the commands and torch with them."""
    return [_named(name, about) for name, about in _ABOUT.items()]


def _named(name: str, about: str) -> Command:
    def run(_: Values) -> None:
        raise AssertionError("an overview runs nothing")

    run.__doc__ = about
    return Command(name, (), run, "")


def main() -> NoReturn:
    """The program `fedmeta`, also `python -m fedmeta`: typer where it is, argparse where not."""
    shell, arguments = run_argparse, sys.argv[1:]
    if importlib.util.find_spec("typer") is not None:
        from fedmeta.cli.typer_shell import run_typer as shell
    listed = overview() if arguments in _OVERVIEWS else commands()
    sys.exit(guarded(shell, listed, arguments))


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
