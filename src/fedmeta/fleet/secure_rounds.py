"""Rounds of which the platform sees the sum alone: its side of masked sums.

A round has two messages instead of one: edges answer the first with their masked sums, the second,
which says whose have arrived, with shares of what opens their sum, and with shares for the next
round. Only where these are not those of the edges asked now (in the first round, or when an edge
has come, gone or failed) they are asked for by a message of their own. `fedmeta.uplink.masking` has
the mathematics, `masked_edge` the other side.

An edge that is silent when it should help to open a sum costs the others nothing, as long as enough
others are there; it is left out where a round is repeated, and, from the second time on, for a
number of rounds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import tree
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.fleet.masked_edge import MASKED
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.roster import Member
from fedmeta.fleet.transport import EdgeLink
from fedmeta.uplink.guard import Guard, Reply, Verdict, judge
from fedmeta.uplink.masking import FEWEST, Occasion, Offer, opened
from fedmeta.uplink.secret_sharing import SHARE_BYTES
from fedmeta.uplink.whole_numbers import Content, from_whole

_HEX = re.compile("[0-9a-f]*")
_KEY, _SHARE, _LONGEST = 64, 2 * SHARE_BYTES, 1024  # letters
_REST = 10  # rounds for which an edge that has failed twice is left out

Traffic = Callable[[str, int, int], None]
"""Told the bytes that an edge was sent and has sent: name, down, up."""


class Prepared(NamedTuple):
    """Edges that have dealt out shares to each other.

    Args:
        occasion: the sum that they are for.
        offers: by name.
    """

    occasion: Occasion
    offers: dict[str, Offer]

    def facts(self, name: str) -> dict[str, Any]:
        """What an edge must know of the others to mask its sum."""
        offers = {other: each.to(name) for other, each in self.offers.items()}
        return {"mask": {**_mask(self.occasion), "offers": offers}}


class SecureSums:
    """Prepares and opens masked sums, one after the other.

    Args:
        link: reaches the edges.
        traffic: is told what that takes.
    """

    def __init__(self, link: EdgeLink, traffic: Traffic) -> None:
        self._link, self._traffic = link, traffic
        self._serial = 0
        self._ahead: Prepared | None = None  # dealt out together with the answers of the last sum
        self._failures: Counter[str] = Counter()
        self._resting: dict[str, int] = {}  # the last round that an edge is left out of

    def parties(self, members: Sequence[Member], number: int) -> list[Member]:
        """Those of some edges that are asked in a round; all, where too few would be left."""
        awake = [m for m in members if self._resting.get(m.name, 0) < number]
        return awake if len(awake) >= FEWEST else list(members)

    def prepared(self, members: Sequence[Member], end: float) -> Prepared | None:
        """Shares dealt out among these edges, or among those of them that answer; None: too few."""
        ahead, self._ahead = self._ahead, None
        keys = {member.name: _public(member) for member in members}
        if ahead is not None and ahead.occasion.keys == keys:
            return ahead
        while len(members) >= FEWEST:
            occasion = self._next(members)
            common = {
                **self._link.request,
                "mask": _mask(occasion),
                "identities": {member.name: member.key for member in members},
            }
            questions = {m.address: Message({**common, "name": m.name}) for m in members}
            answers = self._link.ask("prepare", questions, end)
            offers = {}
            for member in members:
                answer = answers.get(member.address)
                self._traffic(member.name, questions[member.address].size, _size(answer))
                if (offered := _offer(answer, occasion)) is not None:
                    offers[member.name] = offered
            if len(offers) == len(members):
                return Prepared(occasion, offers)
            members = [member for member in members if member.name in offers]
        return None

    def opened(
        self,
        prepared: Prepared,
        addresses: Mapping[str, int],
        replies: Mapping[str, Reply],
        content: Content,
        number: int,
        end: float,
    ) -> Verdict:
        """Open the sum of the edges that have answered; nobody is counted if it stays closed.

        The sum of all stands under the first name, nothing under others.

        Args:
            prepared: that they have masked with.
            addresses: of edges, by name.
            replies: from `read_masked`, with what the platform knows of each, by name.
            content: of their vectors, but for the names of metrics.
            number: of the round.
            end: when to wait no longer, on the monotonic clock.
        """
        occasion, arrived = prepared.occasion, list(replies)
        need = max(FEWEST, occasion.threshold)
        if len(arrived) < need:
            reason = f"{need} of {len(occasion.keys)} sums must arrive before they may be opened"
            return _nobody(arrived, reason)
        kinds = Counter(tuple(reply.contribution.metrics) for reply in replies.values())
        if len(kinds) > 1:
            return _nobody(arrived, "edges send different metrics")
        answers = self._answers(prepared, addresses, arrived, number, end)
        silent = dict.fromkeys(
            (name for name in arrived if name not in answers), "it did not help to open the sum"
        )
        for name in arrived:
            self._failures[name] = self._failures[name] + 1 if name in silent else 0
        if len(answers) < need:
            self._rest(silent, number)
            return _nobody(arrived, "too few others helped to open the sum", silent)
        self._rest([name for name in silent if self._failures[name] > 1], number + _REST)
        vectors = [reply.contribution.update[MASKED] for reply in replies.values()]
        parts = opened(answers, arrived, prepared.offers, occasion, len(vectors[0]))
        self._rest(parts.liars, number + _REST)
        if parts.mask is None:
            lies = dict.fromkeys(parts.liars, "the shares that it has dealt out are false")
            return _nobody(arrived, "another edge has dealt out false shares", lies)
        total: Tensor = sum(vectors, -parts.mask)
        whole = from_whole(total, content._replace(metrics=next(iter(kinds))))
        share, weight = (sum(each) for each in zip(*(r[1:] for r in replies.values()), strict=True))
        # A sum with an edge's nonsense in it has a weight that cannot be.
        if wrong := judge(Guard(), {"all": Reply(whole, share, weight)}, content.like).refused:
            return _nobody(arrived, f"the sum of all edges cannot be: {wrong['all']}")
        nothing = map_leaves(torch.zeros_like, whole)
        return Verdict({**dict.fromkeys(arrived, nothing), arrived[0]: whole}, {}, {})

    def accuse(self, accusations: Mapping[str, Sequence[str]], number: int) -> None:
        """Leave those out whose shares others could not read, or who alone say so.

        Args:
            accusations: the accused, by name of who accuses them.
            number: of the round.
        """
        times = Counter(name for accused in accusations.values() for name in {*accused})
        for accuser, accused in accusations.items():
            alone = [name for name in accused if times[name] == 1]
            if alone:  # one word against another: both are left out, or who accuses many
                self._rest([accuser, *(alone if len(alone) == 1 else [])], number + _REST)
        self._rest([name for name, count in times.items() if count > 1], number + _REST)

    def _answers(
        self,
        prepared: Prepared,
        addresses: Mapping[str, int],
        arrived: Sequence[str],
        number: int,
        end: float,
    ) -> dict[str, dict[str, str]]:
        """Shares by who has given them; offers for the next sum are kept."""
        occasion = prepared.occasion
        self._serial += 1
        following = Occasion(occasion.run, occasion.starts, self._serial, occasion.keys)
        common = {
            **self._link.request,
            "round": number,
            "arrived": list(arrived),
            "mask": _mask(occasion),
            "next": _mask(following),
        }
        questions = {addresses[name]: Message({**common, "name": name}) for name in arrived}
        replies = self._link.ask("reveal", questions, end)
        answers, offers = {}, {}
        for name in arrived:
            reply = replies.get(addresses[name])
            self._traffic(name, questions[addresses[name]].size, _size(reply))
            if isinstance(reply, Message) and _are_shares(reply.facts.get("shares"), occasion):
                answers[name] = reply.facts["shares"]
            if (offered := _offer(reply, following)) is not None:
                offers[name] = offered
        if {*offers} == {*occasion.keys}:
            self._ahead = Prepared(following, offers)
        return answers

    def _next(self, members: Sequence[Member]) -> Occasion:
        self._serial += 1
        keys = {member.name: _public(member) for member in members}
        request = self._link.request
        return Occasion(request["run"], request["life"], self._serial, keys)

    def _rest(self, names: Sequence[str] | Mapping[str, str] | set[str], last: int) -> None:
        for name in names:
            self._resting[name] = max(last, self._resting.get(name, 0))


def read_masked(reply: Message, shared: Tree) -> Contribution:
    """A masked sum as it came: a vector that says nothing yet, and names of metrics."""
    vector, names = reply.tensors.get(MASKED), reply.facts.get("metrics")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MessageError("a reply lacks the names of its metrics", "check the edge's version")
    length = tree.size(shared) + 1 + len(names)
    if vector is None or vector.shape != (length,) or vector.dtype != torch.int64:
        raise MessageError(
            "a reply lacks its masked sum, or it has another length", "check the edge's version"
        )
    none = torch.zeros((), dtype=torch.int64)
    return Contribution({MASKED: vector}, none, dict.fromkeys(names, none))


def accused_by(reply: Message | str | None) -> list[str]:
    """Whose shares an edge could not read, as it says."""
    named = reply.facts.get("accused") if isinstance(reply, Message) else None
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def _mask(occasion: Occasion) -> dict[str, Any]:
    """An occasion in the words of a message."""
    return {"life": occasion.starts, "serial": occasion.serial, "keys": dict(occasion.keys)}


def _public(member: Member) -> str:
    """The exchange key of an edge; whether it is its own, edges check among themselves."""
    try:
        return str(json.loads(member.key)["public"])
    except (ValueError, KeyError, TypeError):
        return ""


def _size(answer: Message | str | None) -> int:
    return answer.size if isinstance(answer, Message) else 0


def _nobody(arrived: Sequence[str], reason: str, other: Mapping[str, str] | None = None) -> Verdict:
    return Verdict({}, {**dict.fromkeys(arrived, reason), **(other or {})}, {})


def _offer(answer: Message | str | None, occasion: Occasion) -> Offer | None:
    """What an edge deals out, if it looks as it should."""
    told = answer.facts.get("offer") if isinstance(answer, Message) else None
    if not isinstance(told, dict) or {*told} != {"key", "seal", "shares"}:
        return None
    shares = told["shares"]
    if not isinstance(shares, dict) or {*shares} != {*occasion.keys}:
        return None
    short = all(_is_hex(each, _LONGEST, exact=False) for each in shares.values())
    fits = short and _is_hex(told["key"], _KEY) and _is_hex(told["seal"], _KEY)
    return Offer(told["key"], told["seal"], shares) if fits else None


def _are_shares(shares: object, occasion: Occasion) -> bool:
    """Whether an answer has the shares that were asked for."""
    if not isinstance(shares, dict) or {*shares} != {*occasion.keys}:
        return False
    return all(_is_hex(each, _SHARE) for each in shares.values())


def _is_hex(text: object, length: int, *, exact: bool = True) -> bool:
    fits = isinstance(text, str) and _HEX.fullmatch(text) is not None
    return fits and (len(str(text)) == length if exact else len(str(text)) <= length)
