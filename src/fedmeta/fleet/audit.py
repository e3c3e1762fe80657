"""The platform's audit log: who joined, was refused, was counted or not, and was quarantined.

A line of JSON each, only ever added to, readable by its owner alone: RUN/fleet/audit.jsonl.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedmeta.core.plain_values import parse_json
from fedmeta.core.storage import append_line

FILE = "audit.jsonl"
Event = Literal["started", "joined", "refused", "counted", "not counted", "quarantined"]


def record(folder: Path, event: Event, **facts: Any) -> None:
    """Add a line; foreign texts must be `one_line` already."""
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **facts}
    append_line(folder / FILE, json.dumps(line, ensure_ascii=False), private=True)


def read_audit(folder: Path) -> list[dict[str, Any]]:
    """All lines, the oldest first; what a crash has cut off or a disk has damaged is left out."""
    file, found = folder / FILE, []
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                value = parse_json(line)
                found += [value] if isinstance(value, dict) else []
    return found
