"""The shell that needs nothing beyond Python: argparse."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from fedmeta.cli.command import ABOUT, Command
from fedmeta.core.errors import SettingError
from fedmeta.core.versions import versions_line


def run_argparse(commands: Sequence[Command], arguments: Sequence[str]) -> None:
    """Parse the arguments and run the command they name (a single command needs no name)."""
    # Typer takes no abbreviated flags either.
    parser = _Parser(prog="fedmeta", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=versions_line())
    if len(commands) == 1:
        _fill(parser, commands[0])
        parser.set_defaults(command=commands[0])
    else:
        group = parser.add_subparsers(required=True, metavar="COMMAND")
        for each in commands:
            sub = group.add_parser(
                each.name, help=each.help, description=each.help, allow_abbrev=False
            )
            _fill(sub, each)
            sub.set_defaults(command=each)
    bare = len(commands) > 1 and not arguments
    values = vars(parser.parse_args(["--help"] if bare else list(arguments)))
    command: Command = values.pop("command")
    command.run(values)


class _Parser(argparse.ArgumentParser):
    """Argparse that complains in one line."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(message, "see --help")


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    groups: dict[str, Any] = {}
    parser.epilog = f"example: {command.example}"
    for each in command.parameters:
        group = groups.setdefault(each.panel, parser.add_argument_group(each.panel))
        given: dict[str, Any] = {"help": each.about.replace("%", "%%")}
        if each.kind is not bool:
            called = each.name if each.argument else each.kind.__name__
            given |= {"type": each.kind, "metavar": each.metavar or called.upper()}
        if each.argument:
            count = "*" if each.many else (None if each.required else "?")
            group.add_argument(each.name, nargs=count, **given)
        else:
            action = "store_true" if each.kind is bool else "append" if each.many else "store"
            group.add_argument(*each.flags, dest=each.name, action=action, **given)
