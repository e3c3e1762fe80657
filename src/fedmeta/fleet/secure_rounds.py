"""Rounds of which the platform sees the sum alone: what edges and platform tell each other.

A round has two messages instead of one. Edges answer the first with their masked sums, the second,
which says whose have arrived, with seeds. `fedmeta.uplink.masking` has the mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import tree
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.roster import Member
from fedmeta.fleet.transport import EdgeLink
from fedmeta.uplink.guard import Guard, Reply, Verdict, judge
from fedmeta.uplink.masking import (
    FEWEST,
    Content,
    MaskContext,
    MaskingKey,
    from_whole,
    mask_of,
    masked,
    revealed,
    to_whole,
)

_MASKED = "sealed"  # its name in messages
_KEY = "masking.key"  # in the edge's folder
_SEED = re.compile("[0-9a-f]{64}")


def public_key(home: Path) -> str:
    """What the other edges need to agree on seeds with this one."""
    return MaskingKey.open(home / _KEY).public


def mask_sum(home: Path, facts: Mapping[str, Any], total: Contribution, shared: Tree) -> Message:
    """An edge's sum as it leaves the edge, its numbers in the order of what it was sent."""
    context = _context(facts)
    content = Content(shared, tuple(sorted(total.metrics)))
    whole = to_whole(total, content, len(context.keys))
    vector = masked(whole, facts["name"], MaskingKey.open(home / _KEY), context)
    return Message({"metrics": list(content.metrics)}, {_MASKED: vector})


def reveal(home: Path, request: Message) -> Message:
    """An edge's answer to who has arrived: the seeds that open the sum of these."""
    facts = request.facts
    secret = MaskingKey.open(home / _KEY)
    seeds = revealed(facts["arrived"], facts["name"], secret, _context(facts))
    return Message({"seeds": seeds, **{key: facts[key] for key in ("run", "round", "name")}})


def mask_facts(members: Sequence[Member], starts: int, attempt: int) -> dict[str, Any]:
    """What edges that are asked together must know of each other."""
    keys = {member.name: member.key for member in members}
    return {"mask": {"life": starts, "attempt": attempt, "keys": keys}}


def read_masked(reply: Message, shared: Tree) -> Contribution:
    """A masked sum as it came: a vector that says nothing yet, and names of metrics."""
    vector, names = reply.tensors.get(_MASKED), reply.facts.get("metrics")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MessageError("a reply lacks the names of its metrics", "check the edge's version")
    length = tree.size(shared) + 1 + len(names)
    if vector is None or vector.shape != (length,) or vector.dtype != torch.int64:
        raise MessageError(
            "a reply lacks its masked sum, or it has another length", "check the edge's version"
        )
    none = torch.zeros((), dtype=torch.int64)
    return Contribution({_MASKED: vector}, none, dict.fromkeys(names, none))


class Unmasked(NamedTuple):
    """What came of asking for seeds.

    Args:
        verdict: who is counted. The sum of all stands under the first name, nothing under others.
        down, up: bytes that it took, by name.
    """

    verdict: Verdict
    down: dict[str, int]
    up: dict[str, int]


def unmask_sum(
    link: EdgeLink,
    addresses: Mapping[str, int],
    replies: Mapping[str, Reply],
    asked: Mapping[str, Any],
    shared: Tree,
    end: float,
) -> Unmasked:
    """Open the sum of the edges that have answered; nobody is counted if it stays closed.

    Args:
        link: reaches them.
        addresses: of edges, by name.
        replies: from `read_masked`, with what the platform knows of each, by name.
        asked: round and `mask_facts`, as edges were told.
        shared: what they were sent.
        end: when to wait no longer, on the monotonic clock.
    """
    arrived, facts = list(replies), {**link.request, **asked}
    if len(arrived) < FEWEST:
        reason = f"{FEWEST} sums must arrive before their seeds may be asked for"
        return _nobody_counted(arrived, reason)
    kinds = {tuple(reply.contribution.metrics) for reply in replies.values()}
    if len(kinds) > 1:
        return _nobody_counted(arrived, "edges send different metrics")
    questions = {
        addresses[name]: Message({**facts, "name": name, "arrived": arrived}) for name in arrived
    }
    answers = link.ask("reveal", questions, end)
    down = {name: questions[addresses[name]].size for name in arrived}
    seeds: dict[str, dict[str, str]] = {}
    refused, up = {}, {}
    lost = {*facts["mask"]["keys"]} - {*arrived}
    for name in arrived:
        answer = answers.get(addresses[name], "no answer in time")
        if isinstance(answer, str) or not _fits(answer, name, lost, facts):
            said = answer if isinstance(answer, str) else answer.facts.get("refused", "no seeds")
            refused[name] = f"it did not reveal its seeds: {said}"
        else:
            seeds[name], up[name] = answer.facts["seeds"], answer.size
    if refused:
        others = dict.fromkeys(arrived, "another edge did not reveal its seeds")
        return Unmasked(Verdict({}, {**others, **refused}, {}), down, up)
    vectors = [reply.contribution.update[_MASKED] for reply in replies.values()]
    total: Tensor = sum(vectors, -mask_of(seeds, len(vectors[0])))
    whole = from_whole(total, Content(shared, next(iter(kinds))))
    share, weight = (sum(each) for each in zip(*(r[1:] for r in replies.values()), strict=True))
    # Seeds that are not those of the masks leave noise, which no weight survives.
    if wrong := judge(Guard(), {"all": Reply(whole, share, weight)}, shared).refused:
        return _nobody_counted(arrived, f"the sum of all edges cannot be: {wrong['all']}")
    nothing = map_leaves(torch.zeros_like, whole)
    return Unmasked(
        Verdict({**dict.fromkeys(arrived, nothing), arrived[0]: whole}, {}, {}), down, up
    )


def _nobody_counted(arrived: Sequence[str], reason: str) -> Unmasked:
    return Unmasked(Verdict({}, dict.fromkeys(arrived, reason), {}), {}, {})


def _fits(answer: Message, name: str, lost: set[str], facts: Mapping[str, Any]) -> bool:
    """Whether an answer has the seeds that were asked for."""
    seeds = answer.facts.get("seeds")
    said = tuple(answer.facts.get(key) for key in ("run", "round", "name"))
    if said != (facts["run"], facts["round"], name) or not isinstance(seeds, dict):
        return False
    return {*seeds} == {name, *lost} and all(
        isinstance(seed, str) and _SEED.fullmatch(seed) for seed in seeds.values()
    )


def _context(facts: Mapping[str, Any]) -> MaskContext:
    mask = facts["mask"]
    return MaskContext(facts["run"], facts["round"], mask["life"], mask["attempt"], mask["keys"])
