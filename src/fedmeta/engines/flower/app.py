"""The app that Flower ships to edges: the small part of ours that it starts, and the user's code.

fedmeta itself is installed on every machine. Code of the user's own (`--algorithm my.py:Mine`)
travels with the app, under a module name that is the same everywhere.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from fedmeta.errors import SettingError
from fedmeta.imports import names_code
from fedmeta.settings import Table
from fedmeta.storage import write_bytes, writing

PACKAGE = "fleet_app"
_SHIPPED = ("client_app.py", "door.py")
_MANIFEST = """\
[project]
name = "fedmeta-fleet"
version = "1.0.0"
description = "A run of fedmeta over Flower."
dependencies = ["flwr=={flwr}"]

[tool.flwr.app]
publisher = "fedmeta"

[tool.flwr.app.components]
serverapp = "fedmeta.engines.flower.server_app:app"
clientapp = "fleet_app.client_app:app"

[tool.flwr.app.config]
folder = ""
"""


def write_app(folder: Path, table: Table) -> Table:
    """Write the app of a run; returns the settings with the names that code has in it.

    Args:
        folder: where to, made where it is missing.
        table: settings that may name code as "file.py:name".
    """
    with writing(folder):
        (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "pyproject.toml", _MANIFEST.format(flwr=version("flwr")).encode())
    write_bytes(folder / PACKAGE / "__init__.py", b"")
    for name in _SHIPPED:
        write_bytes(folder / PACKAGE / name, Path(__file__).with_name(name).read_bytes())
    moved = dict(table)
    name = str(table.get("algorithm", ""))
    moved["algorithm"] = _shipped(folder, name) or table.get("algorithm")
    if moved["algorithm"] is None:
        del moved["algorithm"]
    elif name in table.get("algorithms", {}):
        own = dict(table["algorithms"])
        own[moved["algorithm"]] = own.pop(name)
        moved["algorithms"] = own
    if loss := _shipped(folder, str(table.get("loss", ""))):
        moved["loss"] = loss
    model = table.get("model", {})
    if network := _shipped(folder, str(model.get("name", ""))):
        moved["model"] = {**model, "name": network}
    return moved


def _shipped(folder: Path, name: str) -> str | None:
    """Copy the file that a name points at into the app; returns its name there, None: no file."""
    file, _, attribute = name.rpartition(":")
    if not names_code(name) or not file.endswith(".py"):
        return None
    path = Path(file)
    if not path.is_file():
        raise SettingError(f"file {file} does not exist", "check the path")
    module = "own_" + re.sub(r"\W", "_", path.stem)
    write_bytes(folder / PACKAGE / f"{module}.py", path.read_bytes())
    return f"{PACKAGE}.{module}:{attribute}"
