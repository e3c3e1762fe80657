"""How the platform reaches edges: what carries messages, how long to wait, how many must answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fedmeta.core.errors import FedmetaError, require, require_positive, require_whole
from fedmeta.fleet.message import Message

Kind = Literal["introduce", "round", "reveal", "measure"]
"""What an edge is asked: who it is, its part of a round, the seeds that open masked sums, or sums
that say how good a model is."""

_POLL = 0.5  # seconds between two looks at who is connected


class FleetError(FedmetaError):
    """Too few edges answered; the state after the last good round is kept."""

    exit_code = 4


@dataclass(frozen=True)
class FleetSettings:
    """How a platform deals with its edges.

    Args:
        edges: how many to wait for before the first round.
        quorum: share of the edges asked that must answer, in (0, 1]; with fewer the round is
            repeated.
        deadline: longest time to wait for the answers of a round, and for edges to connect, in s.
        authenticated: edges prove themselves by keys, so that each has an address of its own for
            good and none can take another's name.
    """

    edges: int = 2
    quorum: float = 0.5
    deadline: float = 300.0
    authenticated: bool = True

    def __post_init__(self) -> None:
        require_whole("edges", self.edges, 1)
        require(0 < self.quorum <= 1, "quorum", self.quorum, "a share above 0 and at most 1")
        require_positive("deadline", self.deadline)


class Transport(Protocol):
    """What carries messages to edges and back: Flower's grid, or a test's own."""

    def connected(self) -> dict[int, str]:
        """Addresses of the edges that are there now, and the names their keys were let in under.

        A name is empty where there are no keys.
        """
        ...

    def ask(
        self, kind: Kind, messages: Mapping[int, Message], deadline: float
    ) -> dict[int, Message | str]:
        """Replies by address; a text says why there is none. Who is late is left out."""
        ...


@dataclass(frozen=True)
class EdgeLink:
    """How a run reaches its edges.

    Args:
        transport: carries messages.
        settings: quorum and deadline.
        request: facts that every message has: run, starts of the platform, settings table.
        waiting: called with a line of text while the platform waits, and when an edge fails.
    """

    transport: Transport
    settings: FleetSettings
    request: Mapping[str, Any]
    waiting: Callable[[str], None]

    def introduced(self, addresses: Collection[int]) -> dict[int, Message | str]:
        """What edges say of themselves, by address."""
        questions = dict.fromkeys(addresses, Message(dict(self.request)))
        return self.transport.ask("introduce", questions, self.settings.deadline)

    def connected(self, asked: Collection[int], enough: int, end: float) -> list[int]:
        """Who of those asked is connected, once enough are or the monotonic clock is at `end`."""
        reported = False
        while True:
            connected = self.transport.connected()
            here = [address for address in asked if address in connected]
            if len(here) >= enough or time.monotonic() >= end:
                return here
            if not reported:
                self.waiting(f"waiting for {enough - len(here)} of {len(asked)} edges")
                reported = True
            time.sleep(_POLL)

    def ask(
        self, kind: Kind, messages: Mapping[int, Message], end: float
    ) -> dict[int, Message | str]:
        """`Transport.ask` with the time that is left, at least a second."""
        return self.transport.ask(kind, messages, max(end - time.monotonic(), 1.0))


def check_name(introduction: Message, let_in_as: str) -> None:
    """Refuse an edge that gives itself another name than its key has."""
    name = str(introduction.facts["name"])
    if let_in_as not in ("", name):
        raise FleetError(
            f"the edge with the key of {let_in_as} calls itself {name}",
            "start it with the name that its key was made for",
        )


def checked_reply(reply: Message | str, asked: Mapping[str, object]) -> Message:
    """A reply, if it repeats these facts of what was asked; else an error that says why not."""
    if isinstance(reply, str):
        raise FleetError(reply, "check it")
    if "refused" in reply.facts:
        raise FleetError(str(reply.facts["refused"]), "check it")
    said = {name: reply.facts.get(name) for name in asked}
    if said != asked:
        which = tuple(said.values())[1:]
        raise FleetError(f"it answered to something else ({which})", "nothing to do")
    return reply
