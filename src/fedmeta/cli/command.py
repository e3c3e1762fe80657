"""What a command is, told once: the typer shell and the plain shell are both made from it.

Commands are data, so that the pleasant shell (typer and rich, the extra `cli`) and the one that
needs nothing beyond Python (argparse) can never disagree on names, types or defaults.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

ABOUT = "Federated meta-learning for fleets of small edge devices."

Values = dict[str, Any]
"""What the user gave, by parameter name; what was left out is None (or () or False)."""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option of a command.

    Args:
        name: as Python sees it ("local_steps"); an option's flag is --local-steps.
        help: one line for people.
        kind: int, float, str or bool (a switch).
        panel: heading it stands under in --help.
        argument: positional instead of a flag.
        required: must be given; of arguments that may not be given several times.
        many: may be given several times.
        short: a one-letter flag, without its dash.
        setting: dotted place in the settings table that it overrides; "{algorithm}" stands for the
            chosen algorithm's name.
        metavar: what the value is called in --help.
        default: what holds where it is not given, for --help.
        toml: the value is written as in TOML, with bare words for text.
    """

    name: str
    help: str
    kind: type = str
    panel: str = "Options"
    argument: bool = False
    required: bool = True
    many: bool = False
    short: str | None = None
    setting: str | None = None
    metavar: str | None = None
    default: str | None = None
    toml: bool = False

    @property
    def about(self) -> str:
        """The help line, with what holds where nothing is given."""
        return self.help if self.default is None else f"{self.help} [{self.default}]"

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> list[str]:
        """All flags."""
        return [self.flag, *([f"-{self.short}"] if self.short else [])]


def given(values: Values, *names: str) -> Values:
    """Those of the values that were given."""
    return {name: values[name] for name in names if values[name] is not None}


def under(panel: str, *parameters: Parameter) -> tuple[Parameter, ...]:
    """The parameters under a heading in --help."""
    return tuple(replace(each, panel=panel) for each in parameters)


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, its parameters, what it does, and arguments that show its use."""

    name: str
    parameters: tuple[Parameter, ...]
    run: Callable[[Values], None]
    shown: str

    @property
    def help(self) -> str:
        """What it says of itself: the docstring of what it does."""
        return inspect.getdoc(self.run) or ""

    @property
    def example(self) -> str:
        """A line that shows its use."""
        return f"fedmeta {self.name} {self.shown}"

    def main(self) -> NoReturn:
        """This command alone, as a program: `python -m fedmeta.cli.train …`."""
        from fedmeta.cli import guarded
        from fedmeta.cli.argparse_shell import run_argparse

        code = guarded(run_argparse, [self], sys.argv[1:])
        if "TORCHELASTIC_RUN_ID" in os.environ:
            from fedmeta.engine.ranks import leave

            leave(code)
        sys.exit(code)
