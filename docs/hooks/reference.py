"""The reference, made from the code when the site is built, so that it cannot go stale.

Commands come from their `Command` definitions, settings from the dataclasses and their docstrings,
the API from the packages that say by `__all__` what is public. And the lists of how-to and
explanation pages, from their files.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from griffe import Docstring, DocstringSectionParameters, DocstringSectionText
from mkdocs.structure.files import File, Files

import fedmeta
from fedmeta.algorithms import ALGORITHMS
from fedmeta.cli import commands
from fedmeta.cli.command import Command, Parameter
from fedmeta.config.spec import TABLES, RunSpec
from fedmeta.core.objective import Adaptation
from fedmeta.priors import PriorSettings

_SECTIONS = {
    "how-to": ("How-to guides", "Each answers one question, with commands that run as they stand."),
    "explanation": ("Explanation", "Why it works, and what the numbers mean."),
}


def on_config(config: Any) -> Any:
    """Fill the navigation's folders with their pages."""
    docs = Path(config["docs_dir"])
    pages = {
        **{
            folder: [f"{folder}/{path.name}" for path in _pages(docs / folder)]
            for folder in _SECTIONS
        },
        "reference": [*generated(), *(f"reference/{p.name}" for p in _pages(docs / "reference"))],
    }
    for entry in config["nav"]:
        for title, target in entry.items():
            if (folder := str(target).rstrip("/")) in pages:
                index = [f"{folder}/index.md"]
                entry[title] = index + [page for page in pages[folder] if page not in index]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    docs = Path(config["docs_dir"])
    for uri, text in generated().items():
        files.append(File.generated(config, uri, content=text))
    for folder, (title, words) in _SECTIONS.items():
        listed = [f"- [{_title(path)}]({path.name})" for path in _pages(docs / folder)]
        text = "\n".join([f"# {title}", "", words, "", *listed, ""])
        files.append(File.generated(config, f"{folder}/index.md", content=text))
    return files


def generated() -> dict[str, str]:
    """The generated pages by address."""
    return {
        "reference/index.md": _index(),
        "reference/commands.md": _commands(),
        "reference/settings.md": _settings(),
        **{f"reference/{name}.md": _package(name) for name in _packages()},
    }


def _pages(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.md"))


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


# --- commands ---


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "Every command also runs as `python -m fedmeta.cli.NAME` with the core dependencies alone. "
        "`fedmeta --version` prints versions.",
    ]
    for command in commands():
        lines += ["", f"## fedmeta {command.name}", "", command.help, ""]
        if command.example:
            lines += ["```console", f"$ {command.example}", "```", ""]
        for panel, parameters in _panels(command).items():
            lines += [f"**{panel}**", "", "| option | what it does |", "| --- | --- |"]
            lines += [f"| {_flags(each)} | {_cell(_about(each))} |" for each in parameters]
            lines += [""]
    return "\n".join(lines)


def _panels(command: Command) -> dict[str, list[Parameter]]:
    panels: dict[str, list[Parameter]] = {}
    for each in command.parameters:
        panels.setdefault("Arguments" if each.argument else each.panel, []).append(each)
    return panels


def _flags(each: Parameter) -> str:
    if each.argument:
        return f"`{each.metavar or each.name.upper()}`"
    value = "" if each.kind is bool else f" {each.metavar or each.kind.__name__.upper()}"
    return " ".join(f"`{flag}{value if flag.startswith('--') else ''}`" for flag in each.flags)


def _about(each: Parameter) -> str:
    setting = f" Sets `{each.setting}`." if each.setting else ""
    default = f" Default: `{each.default}`." if each.default is not None else ""
    return each.help.rstrip(".") + "." + default + setting


# --- settings ---


def _settings() -> str:
    lines = [
        "# RunSpec",
        "",
        "What stands in a settings file (`--config FILE.toml`), or after `--set`. Later ones win: "
        "defaults, `preset`, the file, flags. At the top level stand `preset` and "
        f"{_names_without_table()}.",
    ]
    for name, cls in {**TABLES, "inner": Adaptation, "prior": PriorSettings}.items():
        lines += _table(f"[{name}]", cls)
    for name, cls in sorted(ALGORITHMS.items()):
        lines += _table(f"[algorithms.{name}]", cls)
    return "\n".join(lines)


def _names_without_table() -> str:
    names = [each.name for each in fields(RunSpec) if each.name not in (*TABLES, "prior")]
    return ", ".join(f"`{name}`" for name in names)


def _table(title: str, cls: type) -> list[str]:
    sections = Docstring(cls.__doc__ or "").parse("google", warnings=False)
    intro = next((s.value for s in sections if isinstance(s, DocstringSectionText)), "")
    said = _said(sections)
    lines = ["", f"## {title}", "", intro.partition("\n\n")[0], ""]
    lines += ["| setting | default | what it means |", "| --- | --- | --- |"]
    for each in fields(cls):
        shown = f"`{_default(each)}`"
        lines.append(f"| `{each.name}` | {shown} | {_cell(said.get(each.name, ''))} |")
    return lines


def _said(sections: list[Any]) -> dict[str, str]:
    """What the docstring says of each name; several names may share a line."""
    return {
        name.strip(): each.description
        for section in sections
        if isinstance(section, DocstringSectionParameters)
        for each in section.value
        for name in each.name.split(",")
    }


def _default(each: Field[Any]) -> str:
    value = each.default if each.default_factory is MISSING else each.default_factory()
    if isinstance(value, Adaptation):
        return "as [inner]"
    return "–" if value is None else re.sub(r" object at 0x\w+", "", repr(value))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


# --- the API ---


def _packages() -> Iterator[str]:
    """fedmeta and those of its packages and modules that say what is public."""
    yield "fedmeta"
    for module in pkgutil.iter_modules(fedmeta.__path__, "fedmeta."):
        if module.ispkg and module.name != "fedmeta.cli" and _public(module.name):
            yield module.name
    yield "fedmeta.training.tracking"


def _public(name: str) -> list[str]:
    return list(getattr(importlib.import_module(name), "__all__", []))


def _package(name: str) -> str:
    module = importlib.import_module(name)
    lines = [f"# {name}", "", (module.__doc__ or "").partition("\n")[0], ""]
    if not (names := _public(name)):
        return "\n".join([*lines, f"::: {name}", "    options: {show_root_heading: false}", ""])
    own = [each for each in names if not _told_elsewhere(name, each)]
    for each in sorted(own, key=str.lower):
        lines += [f"::: {name}.{each}", ""]
    return "\n".join(lines)


def _told_elsewhere(package: str, name: str) -> bool:
    """What `fedmeta` itself offers stands on its page alone."""
    return package != "fedmeta" and name in fedmeta.__all__


def _index() -> str:
    lines = ["# Reference", "", "Made from the code: it says what this version does.", ""]
    lines += ["- [Commands](commands.md): every command and option"]
    lines += ["- [RunSpec](settings.md): everything a settings file may hold", "", "## Python", ""]
    for name in _packages():
        words = (importlib.import_module(name).__doc__ or "").partition("\n")[0]
        lines.append(f"- [`{name}`]({name}.md): {words}")
    return "\n".join([*lines, ""])
