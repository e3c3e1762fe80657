"""An edge's side of masked sums: it deals out shares, masks its sum, and answers once who arrived.

`fedmeta.uplink.masking` has the mathematics, `secure_rounds` the platform's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.tree import Tree
from fedmeta.fleet.mask_identity import exchange_key, verified
from fedmeta.fleet.mask_memory import MaskMemory
from fedmeta.fleet.message import Message, MessageError
from fedmeta.uplink.masking import FalseOfferError, Occasion, Secrets, answered, masked, offer
from fedmeta.uplink.uplink import Uplink
from fedmeta.uplink.whole_numbers import Content, to_whole

MASKED = "sealed"  # its name in messages
_WHOLE = "whole"  # the same before it is masked, in the edge's memory


def memory_of(home: Path, run: object) -> Path:
    """Where an edge keeps what it remembers of a run."""
    if not str(run).isalnum():
        raise MessageError(f"run {run!r} has no proper name", "check the platform")
    return home / "memory" / str(run)


def prepare_shares(home: Path, certs: str, request: Message) -> Message:
    """Shares of new secrets for a sum to come, once all edges' keys are proven to be theirs."""
    facts = request.facts
    memory = MaskMemory.open(memory_of(home, facts["run"]))
    memory.peers |= verified(facts["identities"], certs, facts["run"])
    told = _offered(home, memory, facts, facts["mask"])
    return Message({"offer": told, **_about(facts)})


def whole_sum(total: Contribution, shared: Tree, uplink: Uplink) -> Message:
    """An edge's sum as it is remembered, its numbers in the order of what it was sent."""
    content = Content(shared, tuple(sorted(total.metrics)), uplink.unit)
    return Message({"metrics": list(content.metrics)}, {_WHOLE: to_whole(total, content)})


def mask_sum(home: Path, facts: Mapping[str, Any], reply: Message) -> Message:
    """The reply to a round as it leaves the edge: its sum masked."""
    memory, occasion = MaskMemory.open(memory_of(home, facts["run"])), _occasion(facts)
    memory.check_peers(occasion)
    part, whole, offers = memory.part(occasion), reply.tensors[_WHOLE], facts["mask"]["offers"]
    try:
        vector = masked(whole, facts["name"], part.secrets, exchange_key(home), occasion, offers)
    except FalseOfferError as error:
        return Message({"refused": str(error), "accused": error.senders, **_about(facts)})
    part.use(whole.numpy().tobytes(), offers)
    memory.save()
    return Message(reply.facts, {MASKED: vector})


def reveal(home: Path, request: Message) -> Message:
    """The one answer to who has arrived, and shares of secrets for the next sum."""
    facts = request.facts
    memory, occasion = MaskMemory.open(memory_of(home, facts["run"])), _occasion(facts)
    memory.check_peers(occasion)
    part, arrived = memory.part(occasion), list(facts["arrived"])
    shares = answered(arrived, facts["name"], exchange_key(home), occasion, part.offers)
    part.reveal(arrived)
    memory.save()
    told = _offered(home, memory, facts, facts["next"])
    return Message({"shares": shares, "offer": told, **_about(facts)})


def _offered(
    home: Path, memory: MaskMemory, facts: Mapping[str, Any], mask: Mapping[str, Any]
) -> dict[str, Any]:
    """What is dealt out for an occasion; the same, if it was asked for before."""
    occasion = _occasion({**facts, "mask": mask})
    memory.check_peers(occasion)
    if occasion.digest().hex() not in memory.parts:
        own = Secrets.new()
        memory.begin(occasion, own, offer(own, facts["name"], exchange_key(home), occasion))
    memory.save()
    return memory.part(occasion).offer


def _occasion(facts: Mapping[str, Any]) -> Occasion:
    mask = facts["mask"]
    return Occasion(str(facts["run"]), int(mask["life"]), int(mask["serial"]), dict(mask["keys"]))


def _about(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key in ("run", "name")}
