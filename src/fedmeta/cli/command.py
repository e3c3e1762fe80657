"""What a command is, told once: the typer shell and the plain shell are both made from it.

Commands are data, so that the pleasant shell (typer and rich, the extra `cli`) and the one that
needs nothing beyond Python (argparse) can never disagree on names, types or defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ABOUT = "Federated meta-learning for fleets of small edge devices."

Values = dict[str, Any]
"""What the user gave, by parameter name; what was left out is None (or () or False)."""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option of a command.

    Args:
        name: as Python sees it ("local_steps"); an option's flag is --local-steps.
        kind: int, float, str or bool (a switch).
        help: one line for people.
        panel: heading it stands under in --help.
        argument: positional instead of a flag.
        required: must be given (arguments only).
        many: may be given several times.
        short: a one-letter flag, without its dash.
        setting: dotted place in the settings table that it overrides; "{algorithm}" stands for the
            chosen algorithm's name.
        metavar: what the value is called in --help.
        default: what holds where it is not given, for --help.
        toml: the value is written as in TOML, with bare words for text.
    """

    name: str
    kind: type
    help: str
    panel: str = "Options"
    argument: bool = False
    required: bool = False
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


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, what it says of itself, its parameters and what it does."""

    name: str
    help: str
    parameters: tuple[Parameter, ...]
    run: Callable[[Values], None]
    example: str = ""
