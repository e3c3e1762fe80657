"""What an edge remembers of masked sums, so that no secret serves twice and no sum is opened twice.

One file per run, which only its owner can read. It is on disk before anything leaves the edge, so
what it forbids stays forbidden after a crash.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedmeta.core.storage import read_json, to_json, write_bytes, writing
from fedmeta.uplink.masking import Occasion, Offer, Secrets
from fedmeta.uplink.whole_numbers import MaskingError

_FILE = "masks.json"
_KEPT = 3  # occasions: one that is being opened, one that is being masked, one to come


@dataclass
class OwnPart:
    """An edge's part of one occasion.

    Args:
        key, seed: its secrets, hexadecimal.
        offer: what it has dealt out.
        offers: what it was dealt by everyone, once it has masked.
        vector: fingerprint of what it has masked; empty: nothing yet.
        question: fingerprint of the answer's question; empty: none was answered.
    """

    key: str
    seed: str
    offer: dict[str, Any]
    offers: dict[str, list[str]] = field(default_factory=dict)
    vector: str = ""
    question: str = ""

    @property
    def secrets(self) -> Secrets:
        """The mask key and the seed."""
        return Secrets(bytes.fromhex(self.key), bytes.fromhex(self.seed))

    def use(self, vector: bytes, offers: dict[str, list[str]]) -> None:
        """Note what is masked; refuse if the secrets have served for something else."""
        mark = _mark([vector.hex(), offers])
        if self.vector not in ("", mark):
            raise MaskingError(
                "it has masked something else with these keys already", "ask for new ones"
            )
        self.vector, self.offers = mark, dict(offers)

    def reveal(self, arrived: list[str]) -> None:
        """Note which sum is opened; refuse if it was another one before."""
        mark = _mark(sorted(arrived))
        if not self.vector:
            raise MaskingError("it has sent nothing that could be opened", "ask for a sum first")
        if self.question not in ("", mark):
            raise MaskingError(
                "it has helped to open another sum of this occasion already",
                "ask who runs the platform: an honest one asks once",
            )
        self.question = mark


@dataclass
class MaskMemory:
    """All of it.

    Args:
        file: where it lies.
        peers: exchange keys of other edges that were proven, by name.
        newest: starts and serial number of the newest occasion; none before it is taken part in.
        parts: by fingerprint of the occasion.
    """

    file: Path
    peers: dict[str, str] = field(default_factory=dict)
    newest: tuple[int, int] = (0, 0)
    parts: dict[str, OwnPart] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> MaskMemory:
        """That of a run, whose memory lies in a folder."""
        file = folder / _FILE
        if not file.exists():
            return cls(file)
        about = read_json(file, "memory of masks")
        parts = {mark: OwnPart(**part) for mark, part in about["parts"].items()}
        starts, serial = about["newest"]
        return cls(file, about["peers"], (starts, serial), parts)

    def save(self) -> None:
        """Write it; nothing that depends on it may be sent before."""
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "peers": self.peers,
            "newest": self.newest,
            "parts": {mark: asdict(part) for mark, part in self.parts.items()},
        }
        write_bytes(self.file, to_json(about).encode(), mode=0o600)

    def check_peers(self, occasion: Occasion) -> None:
        """Refuse keys that were not proven."""
        for name, key in occasion.keys.items():
            if self.peers.get(name) != key:
                raise MaskingError(f"edge {name} has not proven its key", "ask all edges for it")

    def part(self, occasion: Occasion) -> OwnPart:
        """The edge's own part of an occasion that it has dealt out shares for."""
        found = self.parts.get(occasion.digest().hex())
        if found is None:
            raise MaskingError("it has no keys for this sum", "ask for new ones")
        return found

    def begin(self, occasion: Occasion, own: Secrets, offered: Offer) -> None:
        """Note secrets of a new occasion; what is old is forgotten for good."""
        number = (occasion.starts, occasion.serial)
        if number <= self.newest:
            raise MaskingError("a newer sum was asked for before", "nothing to do: it is ignored")
        self.newest = number
        part = OwnPart(own.key.hex(), own.seed.hex(), offered._asdict())
        self.parts[occasion.digest().hex()] = part
        self.parts = dict(list(self.parts.items())[-_KEPT:])


def _mark(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
