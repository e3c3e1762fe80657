"""The app that Flower ships to edges: the small part of ours that it starts, and the user's code.

fedmeta itself is installed on every machine. Code of the user's own (`--algorithm my.py:Mine`)
travels with the app, under a module name that is the same everywhere.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from fedmeta.config.toml_files import Table
from fedmeta.core.errors import SettingError
from fedmeta.core.storage import write_bytes, writing
from fedmeta.core.user_code import is_code_name

PACKAGE = "fleet_app"
_SHIPPED = ("client_app.py", "worker_socket.py")
_MANIFEST = """\
[project]
name = "fedmeta-fleet"
version = "1.0.0"
description = "A run of fedmeta over Flower."
dependencies = ["flwr=={flwr}"]

[tool.flwr.app]
publisher = "fedmeta"

[tool.flwr.app.components]
serverapp = "fedmeta.fleet.server_app:app"
clientapp = "fleet_app.client_app:app"

[tool.flwr.app.config]
folder = ""
"""


def write_app(folder: Path, table: Table) -> Table:
    """Write the app of a run; returns the settings with the names that code has in it."""
    with writing(folder):
        (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "pyproject.toml", _MANIFEST.format(flwr=version("flwr")).encode())
    write_bytes(folder / PACKAGE / "__init__.py", b"")
    for name in _SHIPPED:
        write_bytes(folder / PACKAGE / name, Path(__file__).with_name(name).read_bytes())
    for name in _files(table):
        path = Path(name.rpartition(":")[0])
        if not path.is_file():
            raise SettingError(f"file {path} does not exist", "check the path")
        write_bytes(folder / PACKAGE / f"{_module(name)}.py", path.read_bytes())
    return shipped(table)


def shipped(table: Table) -> Table:
    """Settings with the names that code has in the app."""
    moved = dict(table)
    names = {name: f"{PACKAGE}.{_module(name)}:{name.rpartition(':')[2]}" for name in _files(table)}
    for key in ("algorithm", "loss"):
        if table.get(key) in names:
            moved[key] = names[table[key]]
    model = dict(table.get("model", {}))
    for key in ("name", "backbone"):
        if model.get(key) in names:
            moved["model"] = model = {**model, key: names[model[key]]}
    if "algorithms" in table:
        own = table["algorithms"].items()
        moved["algorithms"] = {names.get(name, name): values for name, values in own}
    return moved


def _files(table: Table) -> list[str]:
    """The names of code in files that the settings have."""
    model = table.get("model", {})
    named = (table.get("algorithm"), table.get("loss"), model.get("name"), model.get("backbone"))
    found = [str(name) for name in named if name and is_code_name(str(name))]
    files = [name for name in found if name.rpartition(":")[0].endswith(".py")]
    if len({_module(name) for name in files}) < len({name.rpartition(":")[0] for name in files}):
        raise SettingError(
            f"two files of your own have one name ({', '.join(files)})", "rename one of them"
        )
    return files


def _module(name: str) -> str:
    """What the file of "FILE.py:NAME" is called in the app."""
    return "own_" + re.sub(r"\W", "_", Path(name.rpartition(":")[0]).stem)
