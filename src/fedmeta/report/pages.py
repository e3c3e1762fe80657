"""Templates to pages, with everything they need inside."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmeta.core.errors import MissingExtraError
from fedmeta.report import format as fmt

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Fact:
    """A name, its value in words, and a line to explain it."""

    name: str
    value: str
    note: str = ""


def require_extras() -> None:
    """Say at once what is not installed, rather than halfway through a page."""
    for package in ("matplotlib", "jinja2"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(package, "report") from error


def render(template: str, content: Mapping[str, Any]) -> str:
    """A page; whatever comes from a run is escaped.

    Args:
        template: name of its file.
        content: what it shows.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=style, fmt=fmt, **content)
