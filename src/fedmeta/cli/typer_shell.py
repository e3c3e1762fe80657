"""The pleasant shell: typer and rich, the extra `cli`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional

import click
import typer

from fedmeta.cli.command import ABOUT, Command, Parameter, Values
from fedmeta.core.errors import SettingError
from fedmeta.core.versions import versions_line


def run_typer(commands: Sequence[Command], arguments: Sequence[str]) -> None:
    """Parse the arguments and run the command they name."""
    app = typer.Typer(
        help=ABOUT,
        suggest_commands=False,  # click suggests already
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    chosen: list[tuple[Command, Values]] = []
    for command in commands:
        epilog = f"[dim]Example:[/dim]  {command.example}"
        app.command(command.name, help=_help(command), epilog=epilog)(_function(command, chosen))
    try:
        app(list(arguments) or ["--help"], standalone_mode=False, prog_name="fedmeta")
    except click.exceptions.ClickException as error:
        raise SettingError(error.format_message().rstrip("."), "see --help") from error
    # Out here, because typer has its own mind about interruptions and closed pipes.
    for command, values in chosen:
        command.run(values)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(versions_line())
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print versions."),
    ] = False,
) -> None:
    """Federated meta-learning for fleets of small edge devices."""


def _help(command: Command) -> str:
    """Arguments are told of here: beside them, typer with newer versions of click is silent."""
    arguments = [each for each in command.parameters if each.argument]
    return "\n\n".join([command.help, *(f"{a.name.upper()}: {a.help}" for a in arguments)])


def _function(command: Command, chosen: list[tuple[Command, Values]]) -> Callable[..., None]:
    """A function with the signature that typer reads a command from; it notes what was chosen."""

    def function(**values: Any) -> None:
        given = {k: None if v == [] else v for k, v in values.items()}
        chosen.append((command, given))

    parameters = [_parameter(each) for each in command.parameters]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def _parameter(each: Parameter) -> inspect.Parameter:
    needed, switch = each.argument and each.required and not each.many, each.kind is bool
    kind: Any = list[each.kind] if each.many else each.kind  # type: ignore[name-defined]
    if not needed and not switch:
        kind = Optional[kind]  # noqa: UP045 - built at run time
    shown: dict[str, Any] = {"show_default": False, "metavar": each.metavar}
    if each.argument:
        about = typer.Argument(help=each.help, **shown)
    else:
        words = each.about.replace("[", r"\[")
        about = typer.Option(*each.flags, help=words, rich_help_panel=each.panel, **shown)
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if needed else False if switch else None,
        annotation=Annotated[kind, about],
    )
