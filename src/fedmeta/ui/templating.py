"""The templates of the pages."""

from __future__ import annotations

from pathlib import Path

import jinja2

from fedmeta.report import format as fmt

FOLDER = Path(__file__).parent
STYLE_OF_REPORT = FOLDER.parent / "report" / "style.css"


def templates(place: str) -> jinja2.Environment:
    """The templates of one server; whatever comes from a run is escaped.

    Args:
        place: what the folder of runs is called, for people.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([FOLDER / "templates", FOLDER.parent / "report"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(fmt=fmt, place=place)
    return environment
