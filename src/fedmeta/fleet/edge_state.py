"""What an edge keeps on its disk, so that neither a crash nor a lost upload can corrupt the sum.

For every run a folder with a file per round:

    round-000007.safetensors    node states after round 7, and the reply that was sent

The platform says with every message which round it counted last for this edge (0: none). The file
of that round is the *committed* state, a newer one is *pending*: computed and sent, but nobody has
said yet that it was counted. Which is which follows from the message alone, so nothing has to be
changed when a pending state turns out to be counted, and nothing can be half changed.
`docs/explanation/fleet.md` has the argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors
from torch import Tensor

from fedmeta.algorithms.algorithm import NodeState
from fedmeta.core.errors import FedmetaError, RunFolderError
from fedmeta.core.storage import private_folder, read_tensors, write_tensors
from fedmeta.fleet.message import Message

_NAME = re.compile(r"round-(\d{6,})\.safetensors")
_STATE, _REPLY = "state/", "reply/"
_WHAT = "memory of the edge"


class StaleError(FedmetaError):
    """A message that a newer one has overtaken."""


class LostStateError(FedmetaError):
    """The platform counts on a state that this edge no longer has."""


class RoundRequest(NamedTuple):
    """What the platform asks for, as its message says.

    Args:
        round: that it asks for.
        starts: how often the platform was started before; orders messages of one round.
        counted: the last round that the platform counted for this edge; 0: none.
        digest: of everything that the reply depends on.
    """

    round: int
    starts: int
    counted: int
    digest: str


class StoredRound(NamedTuple):
    """The request that a file on disk answers."""

    round: int
    starts: int
    digest: str


def answered(entries: Sequence[StoredRound], request: RoundRequest) -> bool:
    """Whether the reply to a request is on disk already; if not, it is to be computed.

    Then the state to start from is that of round `request.counted`, the initial one where it is 0.

    Raises:
        StaleError: a newer message was answered before; this one must change nothing.
        LostStateError: the state of the round counted last is not there.

    Example:
        >>> stored = [StoredRound(3, 1, "a"), StoredRound(4, 1, "b")]
        >>> answered(stored, RoundRequest(4, 1, 3, "b"))
        True
        >>> answered(stored, RoundRequest(5, 1, 3, "c"))  # 4 was lost
        False
    """
    newest = max(((each.round, each.starts) for each in entries), default=(0, 0))
    if (request.round, request.starts) < newest or request.counted >= request.round:
        raise StaleError(
            f"a message of round {request.round} came after one of round {newest[0]}",
            "nothing to do: it is ignored",
        )
    if any((each.round, each.digest) == (request.round, request.digest) for each in entries):
        return True
    if request.counted > 0 and all(each.round != request.counted for each in entries):
        raise LostStateError(
            f"the platform counted round {request.counted} of this edge, whose state is not on its "
            "disk",
            "restore the edge's folder, or start a new run from this one with --init",
        )
    return False


@dataclass(frozen=True)
class EdgeState:
    """The files of one run at one edge, in a folder of their own."""

    folder: Path

    def entries(self) -> list[StoredRound]:
        """What is on disk, by round."""
        found = []
        for number in self._rounds():
            about = self._about(number)
            found.append(StoredRound(number, int(about["life"]), about["digest"]))
        return found

    def states(self, number: int) -> NodeState:
        """Node states after a round."""
        tensors, _ = read_tensors(self._file(number), _WHAT)
        states: NodeState = {}
        for name, leaf in tensors.items():
            if name.startswith(_STATE):
                slot, _, leaf_name = name.removeprefix(_STATE).partition("/")
                states.setdefault(slot, {})[leaf_name] = leaf
        return states

    def reply(self, number: int) -> Message:
        """What was replied to a round."""
        tensors, about = read_tensors(self._file(number), _WHAT)
        sent = {n.removeprefix(_REPLY): leaf for n, leaf in tensors.items() if n.startswith(_REPLY)}
        return Message(json.loads(about["facts"]), sent)

    def save(self, request: RoundRequest, states: NodeState, reply: Message) -> None:
        """Write the outcome of a request, whole or not at all; then drop what it has made old.

        A reply may be sent only after this has returned.
        """
        tensors: dict[str, Tensor] = {f"{_REPLY}{n}": leaf for n, leaf in reply.tensors.items()}
        for slot, leaves in states.items():
            tensors |= {f"{_STATE}{slot}/{name}": leaf for name, leaf in leaves.items()}
        about = {
            "life": str(request.starts),
            "digest": request.digest,
            "facts": json.dumps(reply.facts),
        }
        private_folder(self.folder)
        write_tensors(self._file(request.round), tensors, about, private=True)
        for number in self._rounds():
            if number not in (request.counted, request.round):
                self._file(number).unlink(missing_ok=True)
        for left in self.folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def _about(self, number: int) -> dict[str, str]:
        """What the file of a round says of itself; its tensors stay where they are."""
        path = self._file(number)
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                return dict(file.metadata())
        except (OSError, safetensors.SafetensorError) as error:
            raise RunFolderError(f"{path} ({_WHAT}) is damaged ({error})", "restore it") from error

    def _file(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.safetensors"

    def _rounds(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)


def restore(states: NodeState, kept: NodeState) -> None:
    """Fill the states of nodes from those that were kept, which must be of the same shapes."""
    for slot, leaves in states.items():
        for name, leaf in leaves.items():
            found = kept.get(slot, {}).get(name)
            if found is None or found.shape != leaf.shape:
                raise RunFolderError(
                    f"the edge's memory has no {slot}/{name} of shape {tuple(leaf.shape)}",
                    "its data or its version have changed since: put them back",
                )
            leaf.copy_(found)
