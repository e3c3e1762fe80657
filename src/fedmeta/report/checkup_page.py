"""The page of a table's check-up."""

from __future__ import annotations

import importlib
from pathlib import Path

from fedmeta.core.errors import MissingExtraError
from fedmeta.core.storage import write_bytes
from fedmeta.data.checkup import Checkup
from fedmeta.report import format as fmt
from fedmeta.report.pages import render


def write_checkup(path: Path, found: Checkup) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        found: the check-up.
    """
    try:
        importlib.import_module("jinja2")
    except ImportError as error:
        raise MissingExtraError("jinja2", "report") from error
    sizes = sorted(node.size for node in found.federation.nodes) if found.federation else []
    content = {
        "title": found.file,
        "headline": headline(found),
        "remarks": [f"{note[:1].upper()}{note[1:]}." for note in _notes(found)],
        "found": found,
        "sizes": sizes,
        "total": sum(found.classes.values()),
    }
    write_bytes(path, render("checkup.html", content).encode())


def headline(found: Checkup) -> str:
    """The whole check-up in a sentence.

    Example:
        >>> headline(Checkup("a.csv", 10))
        'Training would refuse this table: see what to change.'
    """
    if found.federation is None:
        return "Training would refuse this table: see what to change."
    nodes, features = len(found.federation.nodes), found.federation.inputs.shape[1]
    return f"Ready to train: {fmt.counted(nodes, 'node')}, {fmt.counted(features, 'input')}."


def _notes(found: Checkup) -> tuple[str, ...]:
    return found.federation.notes if found.federation else ()
