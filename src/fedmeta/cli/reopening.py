"""A finished or interrupted run, opened again: its settings as they were typed, and its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmeta.errors import RunFolderError
from fedmeta.imports import names_code
from fedmeta.meta_model import MetaModel
from fedmeta.models import ModelSettings
from fedmeta.run_folder import RunFolder
from fedmeta.settings import Table, merged


def stored_table(folder: RunFolder, given: Mapping[str, Any]) -> Table:
    """The settings table a run was started with, with what was typed now on top.

    Code of the user's own (a model, an algorithm, a loss) is not loaded because a file names it: it
    has to be named again.
    """
    stored = folder.settings()
    origin = stored.get("origin") or {}
    tables = (stored, stored.get("settings"), origin, origin.get("table", {}))
    if not all(isinstance(each, Mapping) for each in tables):
        raise RunFolderError(f"{folder.path}/settings.json is damaged", "restore the file")
    if "table" not in origin:
        raise RunFolderError(
            f"run {folder.path} was started from Python", "open it from Python, with its own data"
        )
    table: Table = dict(origin["table"])
    code = {
        "--algorithm": (table.get("algorithm", ""), given.get("algorithm", "")),
        "--model": (table.get("model", {}).get("name", ""), given.get("model", {}).get("name", "")),
        "--loss": (table.get("loss", ""), given.get("loss", "")),
    }
    for flag, (stored, typed) in code.items():
        if names_code(str(stored)) and stored != typed:
            raise RunFolderError(
                f"run {folder.path} uses code of your own ({stored})",
                f"name it again: {flag} {stored}",
            )
    return merged([table, given])


def open_model(path: Path, network: str | None) -> MetaModel:
    """The meta-model of a run folder or model file; a network of one's own is named again."""
    return MetaModel.load(path, ModelSettings(network) if network else None)
