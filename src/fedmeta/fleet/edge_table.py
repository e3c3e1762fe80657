"""The table of edges: what the platform has seen of each, for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedmeta.core.serialization import deserialize
from fedmeta.core.storage import read_json, write_json

_FILE = "edges.json"


@dataclass
class EdgeStatus:
    """A row of it.

    Args:
        name: of the edge.
        nodes: how many it serves.
        state: "waiting", "counted" in the last round it was asked in, or why it was not.
        last_seen: when its last reply was read.
        rounds: how often it was counted; a round that a crash has undone counts again.
        bytes_down, bytes_up: sent to it and by it in all.
        seconds: that its last reply took to compute.
        failed: rounds in which it sent what cannot be; so many of them quarantine it.
        opposite: whether its direction was opposite to that of the others when last most agreed.
    """

    name: str
    nodes: int
    state: str = "waiting"
    last_seen: str = ""
    rounds: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    failed: tuple[int, ...] = ()
    opposite: bool = False

    def seen(self, size: int, seconds: float) -> None:
        """Note a reply of so many bytes that took so long."""
        self.state, self.last_seen = "counted", datetime.now(UTC).isoformat(timespec="seconds")
        self.bytes_up += size
        self.seconds = seconds

    def fail(self, number: int) -> None:
        """Note that it failed in a round; a round that is asked again counts once."""
        self.failed = tuple(sorted({*self.failed, number}))

    def strikes(self, number: int) -> int:
        """Rounds before this one in which it failed.

        Those that a crash of the platform has undone are asked again, and do not count before.
        """
        return sum(each < number for each in self.failed)


def write_edges(folder: Path, rows: Iterable[EdgeStatus]) -> None:
    """Write the table into the platform's folder."""
    write_json(folder / _FILE, {"edges": [asdict(row) for row in rows]})


def read_edges(folder: Path) -> list[EdgeStatus]:
    """The table as it was last written; empty before the first round, and without a fleet."""
    file = folder / _FILE
    if not file.exists():
        return []
    rows = read_json(file, "table of edges").get("edges", [])
    return [deserialize(EdgeStatus, row, "edges") for row in rows]
