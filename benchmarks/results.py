"""The measured figures, in results.json: one entry per figure and machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedmeta.core.storage import write_json

RESULTS = Path(__file__).with_name("results.json")

Key = tuple[str, str, str, int, str]


@dataclass(frozen=True)
class Entry:
    """One figure.

    Args:
        name: the benchmark, which is a file here: "rounds" is rounds.py.
        machine: see machine.py.
        network: see problems.py.
        nodes: how many took part.
        dtype: what we computed in: "float32", "tf32" or "bf16".
        median_ms: our time, in ms; of a round unless the benchmark says otherwise.
        peer_ms: the others' times for the same work in the same run, in ms.
        limit_ms: what the counted arithmetic takes at the rate of a large matrix product, in ms.
    """

    name: str
    machine: str
    network: str
    nodes: int
    dtype: str
    median_ms: float
    peer_ms: dict[str, float] = field(default_factory=dict)
    limit_ms: float | None = None

    @property
    def key(self) -> Key:
        """What makes it the same figure measured again."""
        return self.name, self.machine, self.network, self.nodes, self.dtype

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computed it."""
        return self.machine.startswith("GPU")

    def ratio(self, peer: str) -> float:
        """How many times as long the peer takes."""
        return self.peer_ms[peer] / self.median_ms

    @property
    def best_peer(self) -> str | None:
        """The fastest of the others."""
        return min(self.peer_ms, key=lambda name: self.peer_ms[name], default=None)


def merged(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    """All entries, sorted by key, where a new one replaces the old one of the same key."""
    entries = {entry.key: entry for entry in (*old, *new)}
    return [entries[key] for key in sorted(entries)]


def load(path: Path = RESULTS) -> list[Entry]:
    """What has been measured so far; nothing if there is no such file."""
    if not path.exists():
        return []
    return [Entry(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def save(path: Path, new: Iterable[Entry]) -> None:
    """Add entries to the file, which is replaced whole."""
    write_json(path, [_plain(entry) for entry in merged(load(path), new)])


def _plain(entry: Entry) -> dict[str, object]:
    """With four digits, which is more than repeats."""
    plain = asdict(entry)
    for name in ("median_ms", "limit_ms"):
        plain[name] = _rounded(plain[name])
    plain["peer_ms"] = {name: _rounded(ms) for name, ms in entry.peer_ms.items()}
    return plain


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
