"""Result files: one small JSON file per cell, written whole or not at all."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from experiments.cell import Cell, Key, budget, built, still_holds, stored_settings
from fedmeta.config.server_settings import as_stored_now
from fedmeta.config.toml_files import Table, nested
from fedmeta.core.errors import FedmetaError
from fedmeta.core.storage import read_json, write_bytes, writing

FORMAT = 1
SUMMARY = "summary.json"
Result = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Results:
    """A folder of results: FOLDER/<key path>.json, and summary.json."""

    folder: Path

    def file(self, key: Key) -> Path:
        """Where the result of a cell lies."""
        return self.folder.joinpath(*key[:-1], f"{key[-1]}.json")

    def read(self, key: Key) -> Result | None:
        """The result of a cell, current or not; None if there is none."""
        path = self.file(key)
        return read_json(path, "result") if path.exists() else None

    def write(self, key: Key, result: Mapping[str, Any]) -> None:
        """Keep a result."""
        path = self.file(key)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, compact({"format": FORMAT, **result}).encode())

    def current(self, cell: Cell) -> Result | None:
        """The result of a cell if it was obtained as the cell is declared now.

        A tuned cell is outdated, too, when its tuning cell has come to another point. A search
        after another one is if that differs in what it does not try itself.
        """
        found = self.declared(cell)
        if found is None:
            return None
        try:
            now = [stored_settings(built(cell.settings, point_table(cell, found["point"])))]
            now += [budget(built(cell.equal_settings)) if cell.equal else {}]
        except FedmetaError:  # what it was obtained with cannot even be asked for any more
            return None
        then = (as_stored_now(found["settings"]), found["equal"] or {})
        if not now[1].keys() <= then[1].keys():  # from when a budget was kept otherwise
            return None
        return found if all(map(still_holds, then, now)) else None

    def declared(self, cell: Cell) -> Result | None:
        """The result of a cell that was declared as it is now, were other defaults beneath it."""
        found = self.read(cell.key)
        if found is None or found["digest"] != cell.digest():
            return None
        same = _taken_over(cell, self.point(cell)) == _taken_over(cell, found["point"])
        return found if same else None

    def point(self, cell: Cell) -> Table | None:
        """The best point of the tuning cell that a cell rests on; None without one."""
        found = None if cell.tuned is None else self.read(cell.tuned)
        return None if found is None or found["best"] is None else dict(found["best"])


def _taken_over(cell: Cell, point: Table | None) -> Table | None:
    return point and {name: value for name, value in point.items() if name not in cell.grid}


def point_table(cell: Cell, point: Table | None) -> Table:
    """A point of a grid as settings of the cell's algorithm."""
    if not point or cell.tasks is not None:  # where a point is λ, which is no setting of it
        return {}
    return {"algorithms": {cell.settings["algorithm"]: nested(point)}}


def compact(result: Mapping[str, Any]) -> str:
    """JSON with a line per entry and per repeat: small, and still readable as a difference.

    Example:
        >>> print(compact({"key": "a", "repeats": [{"seed": 0}, {"seed": 1}]}))
        {
        "key": "a",
        "repeats": [
         {"seed": 0},
         {"seed": 1}
        ]
        }
        <BLANKLINE>
    """

    def line(value: object) -> str:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)

    def entry(value: object) -> str:
        if not isinstance(value, list) or not any(isinstance(each, dict) for each in value):
            return line(value)
        return "[\n " + ",\n ".join(line(each) for each in value) + "\n]"

    rows = (f"{line(name)}: {entry(value)}" for name, value in result.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def machine_words(device: str) -> str:
    """The machine behind a device in words, without names of hosts."""
    if device.startswith("cuda"):
        return f"GPU {torch.cuda.get_device_name(device)}"
    return f"CPU {platform.machine()}, {torch.get_num_threads()} threads"


def thinned(points: Sequence[T], most: int = 25) -> Sequence[T]:
    """At most so many of them, evenly spread, the first and the last among them.

    Example:
        >>> thinned(range(1, 101), 4)
        [1, 34, 67, 100]
    """
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[round(i * last / (most - 1))] for i in range(most)]
