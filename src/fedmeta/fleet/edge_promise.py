"""What an edge's nodes were promised in a run, and how much of it is used up: kept by the edge.

ε under dp = "local" is for so many uploads with so much noise. A platform that is not trusted might
ask for more of them, or say later that less noise will do. So an edge notes what the first message
of a run said, and counts what it lets go of.
"""

from __future__ import annotations

from pathlib import Path

from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import FedmetaError
from fedmeta.core.serialization import serialize
from fedmeta.core.storage import read_json, to_json, write_bytes, writing

_FILE = "promise.json"


class PromiseError(FedmetaError):
    """A message that asks for more than was promised."""


def spend(folder: Path, settings: RunSpec) -> None:
    """Count an upload that was not sent before, or refuse it.

    Args:
        folder: what the edge remembers of the run.
        settings: as the message has them.
    """
    file, privacy = folder / _FILE, settings.uplink.privacy
    if privacy.dp != "local" and not file.exists():
        return
    wanted = {"privacy": serialize(privacy), "rounds": settings.training.rounds}
    known = read_json(file, "promise of the run") if file.exists() else {**wanted, "uploads": 0}
    if {**known, **wanted} != known:
        raise PromiseError(
            "the platform has other settings of privacy than this run began with",
            "start a new run for them",
        )
    if known["uploads"] >= known["rounds"]:
        raise PromiseError(
            f"all {known['rounds']} uploads that ε was promised for are made",
            "start a new run: it has a promise, and a loss of privacy, of its own",
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = to_json({**known, "uploads": known["uploads"] + 1}).encode()
    write_bytes(file, content, mode=0o600)
