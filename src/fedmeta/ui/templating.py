"""Templates to pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from fedmeta.report import format as fmt

FOLDER = Path(__file__).parent
STYLE_OF_REPORT = FOLDER.parent / "report" / "style.css"


class Pages:
    """The pages of one server; whatever comes from a run is escaped.

    Args:
        place: what the folder of runs is called, for people.
    """

    def __init__(self, place: str) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([FOLDER / "templates", FOLDER.parent / "report"]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(fmt=fmt, place=place)

    def render(self, template: str, content: Mapping[str, Any]) -> str:
        """The HTML of a page.

        Args:
            template: name of its file.
            content: what it shows.
        """
        return self._environment.get_template(template).render(content)
