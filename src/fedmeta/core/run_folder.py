"""A run on disk.

settings.json      resolved settings, seed, versions: what is needed to repeat the run
federation.json    the nodes: sizes and classes, never samples
metrics.jsonl      one line per round, written while it runs
checkpoints/       the newest states, for resuming
model.safetensors  the meta-model
summary.json       what came of it, and the metric of every target
report.html        the same for people
diagnosis.*        the run against the theory, if that was asked for
manifest.json      SHA-256 of all these, written last
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fedmeta.core.errors import RunFolderError
from fedmeta.core.input_files import read_regular
from fedmeta.core.manifest import FILE as MANIFEST
from fedmeta.core.manifest import check_listed
from fedmeta.core.older_settings import todays_run
from fedmeta.core.plain_values import parse_json
from fedmeta.core.storage import (
    append_line,
    private_folder,
    read_json,
    seal,
    unseal,
    write_bytes,
    write_json,
    writing,
)

FORMAT = 1
_LOCK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # nor is a link followed, or a pipe waited for
WITHDRAWN = "its noise is of an older version, whose generator can be inverted, so no ε holds"
"""Why nothing is promised by a run of before noise was drawn from secrets, whatever it says."""
Record = dict[str, Any]
"""What is logged of a round: its number, losses, residuals, bytes, seconds, target metric."""


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The meta-model's file."""
        return self.path / "model.safetensors"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    @classmethod
    def create(
        cls, path: Path, settings: Mapping[str, Any], federation: Mapping[str, Any]
    ) -> RunFolder:
        """Make a new run folder; one that holds a run already is refused."""
        folder = cls(path)
        folder.check_free()
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        private_folder(folder.checkpoints)  # states of nodes tell of their samples
        write_json(path / "federation.json", federation)
        write_json(folder._settings_file, {"format": FORMAT, **settings})
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that holds a run, or an error that says why it does not."""
        folder = cls(path)
        if not path.is_dir():
            raise RunFolderError(f"there is no run folder {path}", "check the path")
        if (path / "comparison.json").is_file():
            raise RunFolderError(
                f"{path} is a comparison of several runs", f"name one of those in {path / 'runs'}"
            )
        if not folder._settings_file.is_file():
            raise RunFolderError(
                f"{path} holds no run (no settings.json)", "name the folder that --out made"
            )
        return folder

    def check_free(self) -> None:
        """Refuse a folder that holds a run or a comparison already."""
        if self._settings_file.exists():
            raise RunFolderError(
                f"{self.path} holds a run already",
                "continue it with --resume, or choose another --out",
            )
        if (self.path / "comparison.json").exists():
            raise RunFolderError(f"{self.path} holds a comparison already", "choose another --out")

    def has_ended(self) -> bool:
        """Whether there is a summary: the run finished, stopped early or diverged."""
        return (self.path / "summary.json").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the run; the lock goes with the process."""
        with writing(self.path):
            lock = os.fdopen(os.open(self.path / ".lock", _LOCK | os.O_RDWR | os.O_CREAT, 0o666))
        with lock:
            try:
                if not _lock(lock, fcntl.LOCK_EX):
                    time.sleep(0.05)  # somebody may have asked `is_running` just now
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunFolderError(
                    f"another process is training in {self.path}", "wait for it, or stop it first"
                ) from error
            yield

    def is_running(self) -> bool:
        """Whether a process is training in it now."""
        if self.has_ended():
            return False
        try:
            with os.fdopen(os.open(self.path / ".lock", _LOCK | os.O_RDONLY)) as lock:
                return not _lock(lock, fcntl.LOCK_SH)
        except OSError:  # nobody has ever trained in it
            return False

    def reopen(self, settings: Mapping[str, Any]) -> None:
        """Make it an unfinished run again, with the settings it now goes on with."""
        unseal(self.path)
        write_json(self._settings_file, {"format": FORMAT, **settings})
        diagnosis = self.path.glob("diagnosis.*")
        for result in (self.path / "summary.json", self.model, self.report, *diagnosis):
            result.unlink(missing_ok=True)

    def settings(self) -> dict[str, Any]:
        """What settings.json says."""
        settings = read_json(self._settings_file, "settings of the run")
        if settings.get("format") != FORMAT:
            raise RunFolderError(
                f"run {self.path} has format {settings.get('format')!r}, this version reads "
                f"{FORMAT}",
                "use the version of fedmeta that wrote it",
            )
        if isinstance(settings.get("settings"), Mapping):
            settings["settings"] = todays_run(settings["settings"])
        return _with_label_scaling(_without_withdrawn(settings))

    def federation(self) -> dict[str, Any]:
        """What federation.json says."""
        return read_json(self.path / "federation.json", "description of the federation")

    def summary(self) -> dict[str, Any]:
        """What summary.json says; a run that has not ended has none."""
        file = self.path / "summary.json"
        if not file.exists():
            raise RunFolderError(
                f"run {self.path} has not ended (no summary.json)", "continue it with --resume"
            )
        return read_json(file, "summary of the run")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, and after it the manifest: all of the run is there now."""
        write_json(self.path / "summary.json", summary)
        seal(self.path)

    def append(self, record: Record) -> None:
        """Add the line of a round to metrics.jsonl."""
        append_line(self._metrics_file, _line(record))

    def history(self) -> list[Record]:
        """All complete lines of metrics.jsonl; a half-written last one is left out."""
        try:
            content = read_regular(self._metrics_file)
            check_listed(self._metrics_file, content)
            text = content.decode("utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise RunFolderError(
                f"{self._metrics_file} cannot be read ({error})", "restore it"
            ) from error
        records = []
        lines = text.split("\n")[:-1]  # what follows the last line end was cut off
        for number, line in enumerate(lines, start=1):
            try:
                records.append(parse_json(line))
            except ValueError as error:
                raise RunFolderError(
                    f"line {number} of {self._metrics_file} is damaged", "restore or delete it"
                ) from error
        return records

    def remove_partial_files(self) -> None:
        """Remove what a killed process was in the middle of writing."""
        for place in (self.path, self.checkpoints):
            for left in place.glob(".*.tmp"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def until(self, last_round: int) -> list[Record]:
        """The lines of all rounds up to one."""
        history = self.history()
        if not all(
            isinstance(each, dict) and isinstance(each.get("round"), int) for each in history
        ):
            raise RunFolderError(f"{self._metrics_file} is damaged", "restore or delete it")
        return [record for record in history if record["round"] <= last_round]

    def rewind(self, last_round: int) -> list[Record]:
        """Keep the lines up to a round, so that the rounds after it can be written again."""
        kept = self.until(last_round)
        unseal(self.path)
        write_bytes(self._metrics_file, "".join(_line(record) + "\n" for record in kept).encode())
        return kept

    def note(self) -> str | None:
        """What to tell of a run whose files cannot be checked; None: they are, whenever read."""
        if not self.has_ended() or (self.path / MANIFEST).exists():
            return None
        return f"{self.path} has no {MANIFEST}: its files cannot be checked for changes"

    @property
    def _settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def _metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"


@contextmanager
def parsing(path: Path, file: str) -> Iterator[None]:
    """Say which file of a folder is damaged where taking values from it fails."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise RunFolderError(f"{path / file} is damaged ({what})", "restore the file") from error


class HistoryDigest:
    """SHA-256 of rounds as metrics.jsonl has them, for checkpoints to remember."""

    def __init__(self) -> None:
        self._found, self._counted = hashlib.sha256(), 0

    def of(self, records: Sequence[Record]) -> str:
        """The digest of all records; those of the last call come first among them."""
        for record in records[self._counted :]:
            self._found.update(_line(record).encode() + b"\n")
        self._counted = len(records)
        return self._found.hexdigest()


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False)


def _with_label_scaling(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run from before labels were scaled, saying that its labels are not."""
    settings = stored.get("settings")
    data = settings.get("data") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or not isinstance(data, Mapping):
        return stored
    if "label_scaling" in data:
        return stored

    def told(table: Any) -> Any:
        own = table.get("data", {}) if isinstance(table, Mapping) else None
        if not isinstance(own, Mapping) or "own" in own:  # in words: a federation of one's own
            return table
        return {**table, "data": {**own, "label_scaling": "none"}}

    known = {**stored, "settings": told(settings)}
    if "spec" in stored:
        known["spec"] = told(stored["spec"])
    origin = stored.get("origin")
    if isinstance(origin, Mapping) and "table" in origin:
        known["origin"] = {**origin, "table": told(origin["table"])}
    return known


def _without_withdrawn(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings without the ε that older versions have promised."""
    settings = stored.get("settings")
    uplink = settings.get("uplink") if isinstance(settings, Mapping) else None
    if not isinstance(uplink, Mapping) or not isinstance(settings, Mapping):
        return stored
    promise = uplink.get("promise")
    if not isinstance(promise, Mapping) or promise.get("epsilon") is None or "noise" in promise:
        return stored
    promise = {**promise, "epsilon": None, "why": WITHDRAWN}
    return {**stored, "settings": {**settings, "uplink": {**uplink, "promise": promise}}}


def difference(stored: Any, given: Any, where: str = "") -> str | None:
    """The first setting in which two plain descriptions differ, in words; None if none does."""
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        for key in {**stored, **given}:
            place = f"{where}.{key}" if where else str(key)
            if (found := difference(stored.get(key), given.get(key), place)) is not None:
                return found
        return None
    if isinstance(stored, list | tuple) and isinstance(given, list | tuple):
        stored, given = list(stored), list(given)
    return None if stored == given else f"{where} was {stored!r} and is now {given!r}"


def _lock(file: IO[str], kind: int) -> bool:
    """Take a lock if nobody has it; whether that was so. It goes when the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
