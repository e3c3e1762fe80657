"""The pleasant shell: typer and rich, the extra `cli`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional

import click
import typer

from fedmeta.cli.command import ABOUT, Command, Parameter, Values
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import versions_line


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

    def annotated(each: Parameter) -> Any:
        if each.argument:
            kind: Any = list[each.kind] if each.many else each.kind  # type: ignore[name-defined]
            if not each.required:
                kind = Optional[kind]  # noqa: UP045 - built at run time
            about = typer.Argument(help=each.help, show_default=False, metavar=each.metavar)
            return Annotated[kind, about]
        info = typer.Option(
            *each.flags,
            help=each.about.replace("[", r"\["),
            rich_help_panel=each.panel,
            show_default=False,
            metavar=each.metavar,
        )
        if each.kind is bool:
            return Annotated[bool, info]
        kind = list[each.kind] if each.many else each.kind  # type: ignore[name-defined]
        return Annotated[Optional[kind], info]  # noqa: UP045 - built at run time

    def function(**values: Any) -> None:
        chosen.append((command, {name: _given(value) for name, value in values.items()}))

    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if each.argument and each.required
            else (False if each.kind is bool else None),
            annotation=annotated(each),
        )
        for each in command.parameters
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    function.__doc__ = command.help
    return function


def _given(value: Any) -> Any:
    return value or None if isinstance(value, list) else value
