"""What lies in a folder of runs: a row for each run, comparison and sequence, read cheaply.

A row is made of the few small files that say how a run began and ended, and is kept until one of
them changes. A folder that is damaged or half-written becomes a row that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedmeta.core.errors import FedmetaError, RunFolderError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import read_json
from fedmeta.report import format as fmt
from fedmeta.report.reading import UNFINISHED
from fedmeta.report.sequence_page import read_sequence_facts
from fedmeta.ui.keeping import NO_NOTES, Notes, read_notes
from fedmeta.ui.metrics_file import latest

Kind = Literal["run", "comparison", "sequence"]
DAMAGED, RUNNING = "damaged", "running"

_DEPTH = 3  # folders of folders of runs; deeper is not looked
_FILES: dict[str, Kind] = {
    "comparison.json": "comparison",
    "sequence.json": "sequence",
    "declaration.json": "sequence",
    "settings.json": "run",
    "federation.json": "run",
    "metrics.jsonl": "run",
    "summary.json": "run",
}
"""By which file a folder is known, in this order; a run may have been cut off after any of them."""


@dataclass(frozen=True)
class Row:
    """A run, comparison or sequence in the list.

    Args:
        name: path below the folder of runs, with slashes.
        kind: what it is.
        status: of summary.json, "running", "unfinished" or "damaged".
        title: algorithm or algorithms.
        data: what they were trained on.
        metric: "accuracy" or "mse", once known.
        before: mean of the targets without adapting, if known.
        after: the same with the steps that the algorithm takes.
        rounds: done.
        planned: asked for.
        created: when, in ISO 8601.
        problem: what is damaged, in words.
        unit: of the metric, for people.
        notes: the title and tags that somebody gave it.
    """

    name: str
    kind: Kind
    status: str
    title: str = ""
    data: str = ""
    metric: str | None = None
    before: float | None = None
    after: float | None = None
    rounds: int = 0
    planned: int = 0
    created: str = ""
    problem: str = ""
    unit: str = ""
    notes: Notes = NO_NOTES


class RunIndex:
    """A folder of runs.

    Args:
        root: the folder; nothing outside it is ever read by name.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[Path, tuple[object, Row]] = {}

    def rows(self, below: Path | None = None) -> list[Row]:
        """All rows, or those inside a folder, the newest first; damaged ones last."""
        found = _found(self.root if below is None else below, _DEPTH)
        rows = [self._row(folder, kind) for folder, kind in found]
        newest_first = sorted(rows, key=lambda row: (row.created, row.name), reverse=True)
        return sorted(newest_first, key=lambda row: row.status == DAMAGED)

    def folder(self, name: str) -> Path:
        """The folder of a name, or an error: names cannot lead out of the folder of runs."""
        try:
            path = (self.root / name).resolve()
            inside = path.is_relative_to(self.root) and path != self.root and path.is_dir()
        except (OSError, ValueError):  # too long, a null byte, a loop of links
            inside = False
        if not inside:
            raise RunFolderError(
                f"there is no {name[:200]!r} in the folder of runs", "go back to the list"
            )
        return path

    def kind(self, folder: Path) -> Kind:
        """What lies in a folder; an error where that is no run, comparison or sequence."""
        kind = _kind(folder)
        if kind is None:
            raise RunFolderError(f"{self.name(folder)!r} is no run", "go back to the list")
        return kind

    def name(self, folder: Path) -> str:
        """The name of a folder: the inverse of `folder`."""
        return folder.resolve().relative_to(self.root).as_posix()

    def enclosing(self, folder: Path) -> tuple[Kind, Path] | None:
        """The comparison or sequence that a run is part of, if it is."""
        outer = folder.resolve().relative_to(self.root).parents
        kinds = ((_kind(self.root / each), self.root / each) for each in list(outer)[:-1])
        return next(((kind, each) for kind, each in kinds if kind and kind != "run"), None)

    def _row(self, folder: Path, kind: Kind) -> Row:
        stamp = [_stamp(folder / file) for file in _FILES]
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = self._known[folder] = stamp, _read(self.name(folder), kind, folder)
        row = replace(known[1], notes=read_notes(folder))
        running = row.status == UNFINISHED and RunFolder(folder).is_running()
        return replace(row, status=RUNNING) if running else row


def _found(folder: Path, depth: int) -> Iterator[tuple[Path, Kind]]:
    try:
        inner = sorted(each for each in folder.iterdir() if each.name[0] != ".")
    except OSError:  # not ours to read
        return
    for each in inner:
        if each.is_symlink() or not each.is_dir():  # a link may lead out of the folder
            continue
        kind = _kind(each)
        if kind is not None:
            yield each, kind
        elif depth > 1:
            yield from _found(each, depth - 1)


def _kind(folder: Path) -> Kind | None:
    return next((kind for file, kind in _FILES.items() if (folder / file).is_file()), None)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(name: str, kind: Kind, folder: Path) -> Row:
    readers = {"run": _run, "comparison": _comparison, "sequence": _sequence}
    try:
        return readers[kind](name, folder)
    except FedmetaError as error:
        problem = error.problem
    except KeyError as error:
        problem = f"a file of it lacks {error}"
    except (TypeError, ValueError, AttributeError, OSError) as error:
        problem = f"a file of it is damaged ({error})"
    return Row(name, kind, DAMAGED, problem=problem.replace(f"{folder}/", ""))


def _run(name: str, folder: Path) -> Row:
    run = RunFolder(folder)
    if not (folder / "settings.json").exists():
        raise RunFolderError("it has no settings.json", "its first moments were cut off")
    stored = run.settings()
    settings = stored["settings"]
    row = Row(
        name,
        "run",
        UNFINISHED,
        title=str(settings["algorithm"]["name"]),
        data=_data_name(settings),
        planned=int(settings["training"]["rounds"]),
        created=str(stored.get("created", "")),
    )
    if not run.has_ended():
        record = latest(folder / "metrics.jsonl") or {"round": 0}
        return replace(row, rounds=int(record["round"]))
    summary = run.summary()
    steps = str(summary.get("adaptation_steps", 1))
    return replace(
        row,
        status=str(summary["status"]),
        rounds=int(summary["rounds"]),
        metric=str(summary["metric"]),
        unit=fmt.unit(str(summary["metric"]), settings.get("data", {}).get("label")),
        before=_number((summary["target_metric"].get("0") or {}).get("mean")),
        after=_number((summary["target_metric"].get(steps) or {}).get("mean")),
    )


def _comparison(name: str, folder: Path) -> Row:
    stored = read_json(folder / "comparison.json", "result of the comparison")
    rows = stored["rows"]
    return Row(
        name,
        "comparison",
        f"{len(rows)} × {fmt.counted(len(stored['seeds']), 'seed')}",
        title=", ".join(str(row["label"]) for row in rows),
        data=_data_name(stored),
        metric=str(stored["metric"]),
        unit=fmt.unit(str(stored["metric"]), stored.get("data", {}).get("label")),
        before=_number(rows[0].get("before_mean")),
        after=_number(rows[0]["mean"]),
        rounds=int(rows[0]["rounds"]),
        planned=int(rows[0]["rounds"]),
        created=_written(folder / "comparison.json"),
    )


def _sequence(name: str, folder: Path) -> Row:
    asked = read_json(folder / "declaration.json", "declaration of the sequence")
    row = Row(
        name,
        "sequence",
        UNFINISHED,
        title=", ".join(map(str, asked["methods"])),
        data=str(asked["name"]),
        created=_written(folder / "declaration.json"),
    )
    if not (folder / "sequence.json").exists():
        return row
    facts = read_sequence_facts(folder)
    best = max((_number(m.measures["average"]["mean"]) or 0.0 for m in facts.methods), default=None)
    status = f"{fmt.counted(len(facts.tasks), 'task')} × {fmt.counted(len(facts.seeds), 'seed')}"
    return replace(row, status=status, metric="accuracy", after=best)


def _data_name(settings: Mapping[str, Any]) -> str:
    return Path(str(settings.get("data", {}).get("name", ""))).name


def _written(file: Path) -> str:
    """When a file was written, as runs write their dates."""
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
