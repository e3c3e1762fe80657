"""How the platform reaches edges: what carries messages, how long to wait, how many must answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import FedmetaError, require, require_positive, require_whole
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.message_schema import Limits, check_introduction, one_line
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.uplink import Uplink

Kind = Literal["introduce", "prepare", "round", "reveal", "measure"]
"""What an edge is asked: who it is, shares for a masked sum, its part of a round, the shares that
open a masked sum, or sums that say how good a model is."""

EDGES = Guard("reject", direction=-0.2, fewest=5)  # the guard of edges where nothing else is said
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
        strikes: rounds with a message that cannot be, after which an edge is asked no more.
        max_samples: most that a node may claim to have.
        max_edge_samples: most that all nodes of an edge may.
        max_weight: what an edge counts for at most, in medians of all edges' samples; above 1.
        guard: of the edges' sums. None: as `uplink.guard` if the settings have it, else `EDGES`,
            and "keep" where nobody can be judged (secure aggregation, central noise).
    """

    edges: int = 2
    quorum: float = 0.5
    deadline: float = 300.0
    authenticated: bool = True
    strikes: int = 3
    max_samples: int = 100_000
    max_edge_samples: int = 10_000_000
    max_weight: float = 4.0
    guard: Guard | None = None

    def __post_init__(self) -> None:
        for name in ("edges", "strikes", "max_samples", "max_edge_samples"):
            require_whole(name, getattr(self, name), 1)
        finite = 1 < self.max_weight < float("inf")
        require(finite, "max_weight", self.max_weight, "a number greater than 1")
        require(0 < self.quorum <= 1, "quorum", self.quorum, "a share above 0 and at most 1")
        require_positive("deadline", self.deadline)

    @property
    def limits(self) -> Limits:
        """What an edge may claim."""
        return Limits(self.max_samples, self.max_edge_samples)

    def edge_guard(self, table: Mapping[str, Any], uplink: Uplink) -> Guard:
        """The guard of the edges' sums; `table` are the settings as they were given."""
        if self.guard is not None:
            return self.guard
        if "guard" in table.get("uplink", {}) or uplink.secure_aggregation:
            return uplink.guard
        return Guard() if uplink.privacy.dp == "central" else EDGES


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

    def returned(self, addresses: Collection[int]) -> None:
        """Wait until edges of before answer again, or the deadline is over.

        That they are connected says little: Flower takes those that were killed with the platform
        for online, until it has missed them for a minute.
        """
        end, missing = time.monotonic() + self.settings.deadline, {*addresses}
        while missing and time.monotonic() < end:
            here = self.connected(missing, len(missing), end)
            questions = dict.fromkeys(here, Message(dict(self.request)))
            answers = self.ask("introduce", questions, end)
            missing -= {address for address, said in answers.items() if isinstance(said, Message)}
            if missing:
                time.sleep(_POLL)

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


def told(answer: Message | str) -> Message:
    """An answer; or the error that says why there is none, in words that may be shown."""
    if isinstance(answer, str):
        raise FleetError(one_line(answer), "check it")
    if "damaged" in answer.facts:
        raise MessageError(one_line(answer.facts["damaged"]), "check it")
    if isinstance(why := answer.facts.get("refused"), str):
        raise FleetError(one_line(why), "check it")
    return answer


def introduction(answer: Message | str, let_in_as: str, spec: RunSpec, limits: Limits) -> Message:
    """What an edge says of itself, if it may take part; else an error that says why not.

    Args:
        answer: as it came.
        let_in_as: the name of its key; empty where there are no keys.
        spec: of the run.
        limits: what it may claim.
    """
    said = told(answer)
    keys = ("key",) if spec.uplink.secure_aggregation else ()
    check_introduction(said, spec.data_settings, limits, keys)
    name = said.facts["name"]
    if let_in_as not in ("", name):
        raise FleetError(
            f"the edge with the key of {let_in_as} calls itself {name}",
            "start it with the name that its key was made for",
        )
    return said
