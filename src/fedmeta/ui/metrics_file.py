"""The rounds of a run while it is being written: what is new since a reader's last look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmeta.core.errors import RunFolderError
from fedmeta.core.plain_values import parse_json
from fedmeta.core.run_folder import Record

_TAIL = 1 << 16  # bytes that surely hold the last round


@dataclass(frozen=True)
class NewRounds:
    """Rounds that were added.

    Args:
        records: of the new rounds, in order.
        offset: where the next look starts, in bytes.
        restarted: the file is not the one that the reader knew (the run was resumed from an
            earlier round): the records are all there are.
    """

    records: list[Record]
    offset: int
    restarted: bool


def new_rounds(file: Path, offset: int) -> NewRounds:
    """Complete lines of metrics.jsonl after a place in it; a line still being written waits.

    Args:
        file: of the run; it need not be there yet.
        offset: of the last look, in bytes; 0 at first.
    """
    restarted = offset > 0 and _read_from(file, offset - 1)[:1] != b"\n"
    start = 0 if restarted else offset
    content = _read_from(file, start)
    whole = content[: content.rfind(b"\n") + 1]
    records = [_record(file, line) for line in whole.splitlines()]
    return NewRounds(records, start + len(whole), restarted)


def latest(file: Path) -> Record | None:
    """The last complete round; None before the first one."""
    try:
        start = max(0, file.stat().st_size - _TAIL)
    except FileNotFoundError:
        return None
    lines = _read_from(file, start).split(b"\n")[:-1]
    return _record(file, lines[-1]) if lines else None


def _read_from(file: Path, start: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return stream.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunFolderError(f"{file.name} cannot be read ({error})", "restore it") from error


def _record(file: Path, line: bytes) -> Record:
    try:
        record: Any = parse_json(line)
        int(record["round"])
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            f"{file.name} has a damaged line ({line[:40].decode(errors='replace')}…)",
            "restore or delete it",
        ) from error
    return dict(record)
