"""What the platform asks all edges beside training: sums that say how good a finished model is.

λ = "auto" needs the loss of all source nodes under two models, importance of the kind "fisher" the
squared gradients of all their samples. Edges answer with sums over their nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import FedmetaError
from fedmeta.core.tree import Tree
from fedmeta.fleet.message import Message, pack_model, unflatten
from fedmeta.fleet.roster import Member, Roster
from fedmeta.fleet.transport import (
    FleetError,
    FleetSettings,
    Transport,
    checked_reply,
    wait_until_connected,
)
from fedmeta.models.meta_model import MetaModel
from fedmeta.priors import fisher

_ATTEMPTS = 3  # as of a round


@dataclass(frozen=True)
class EdgeQueries:
    """Asks the edges of a run.

    Args:
        transport: reaches them.
        roster: who they are.
        settings: quorum and deadline.
        request: facts that every message has: run, starts of the platform, settings table.
        waiting: called with a line of text while the platform waits, and when an edge fails.
    """

    transport: Transport
    roster: Roster
    settings: FleetSettings
    request: Mapping[str, Any]
    waiting: Callable[[str], None]

    def losses(self, models: Mapping[str, MetaModel]) -> dict[str, float]:
        """Σ D_i ℓ_i / Σ D_i of every model over the source nodes of all edges that answer."""
        number = torch.zeros((), dtype=torch.float64)
        sums = self._sums("loss", models, dict.fromkeys(models, number), number)
        return {name: float(sums[name] / sums["count"]) for name in models}

    def fisher(self, model: MetaModel) -> Tree:
        """The Fisher diagonal over the source nodes of all edges that answer."""
        vector = torch.zeros(tree.size(model.theta), dtype=next(iter(model.theta.values())).dtype)
        sums = self._sums("fisher", {"model": model}, {"model": vector}, vector.sum())
        return fisher(unflatten(sums["model"], model.theta), sums["count"])

    def _sums(
        self,
        what: Literal["loss", "fisher"],
        models: Mapping[str, MetaModel],
        like: Mapping[str, Tensor],
        count: Tensor,
    ) -> dict[str, Tensor]:
        """Σ over edges, in the order of the roster, of what they reply."""
        members = self.roster.members
        least = math.ceil(self.settings.quorum * len(members))
        content = {name: pack_model(model) for name, model in models.items()}
        for _ in range(_ATTEMPTS):
            end, reasons = time.monotonic() + self.settings.deadline, []
            addresses = [member.address for member in members]
            here = wait_until_connected(self.transport, addresses, len(members), end, self.waiting)
            messages = {
                m.address: self._message(m, what, content) for m in members if m.address in here
            }
            replies = self.transport.ask("measure", messages, max(end - time.monotonic(), 1.0))
            parts = []
            for member in members:
                reply = replies.get(member.address, "no answer in time")
                try:
                    parts.append(self._read(member, what, reply, {**like, "count": count}))
                except FedmetaError as error:
                    reasons.append(f"{member.name}: {error.problem}")
                    self.waiting(f"edge {reasons[-1]}")
            if len(parts) >= least:
                return {
                    name: torch.stack([each[name] for each in parts]).sum(0) for name in parts[0]
                }
        raise FleetError(
            f"{len(parts)} of {len(members)} edges told the {what} of the model, {least} are "
            f"needed ({reasons[0]})",
            "bring edges back and go on with --resume, or lower --quorum",
        )

    def _message(self, member: Member, what: str, content: Mapping[str, Tensor]) -> Message:
        base = self.roster.base_message(member)
        facts = {**self.request, **base.facts, "what": what, "models": list(content)}
        return Message(facts, {**base.tensors, **content})

    def _read(
        self, member: Member, what: str, reply: Message | str, like: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The sums in a reply, if it is one."""
        asked = {"run": self.request["run"], "what": what, "name": member.name}
        reply = checked_reply(reply, asked)
        for name, leaf in like.items():
            found = reply.tensors.get(name)
            if found is None or (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
                raise FleetError(
                    f"its {name} is missing or of another shape", "check the edge's version"
                )
            if not bool(found.isfinite().all()):
                raise FleetError(f"its {name} is not finite", "check the edge's version")
        return {name: reply.tensors[name] for name in like}
