"""What the platform asks all edges beside training: sums that say how good a finished model is.

λ = "auto" needs the loss of all source nodes under two models, importance of the kind "fisher" the
squared gradients of all their samples. Edges answer with sums over their nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import FedmetaError
from fedmeta.core.tree import Tree
from fedmeta.fleet.message import Message, model_bytes, unflatten
from fedmeta.fleet.roster import Roster
from fedmeta.fleet.transport import EdgeLink, FleetError, checked_reply
from fedmeta.models.meta_model import MetaModel
from fedmeta.priors import fisher

_ATTEMPTS = 3  # as of a round


def source_losses(
    link: EdgeLink, roster: Roster, models: Mapping[str, MetaModel]
) -> dict[str, float]:
    """Σ D_i ℓ_i / Σ D_i of every model over the source nodes of all edges that answer."""
    number = torch.zeros((), dtype=torch.float64)
    like = dict.fromkeys([*models, "count"], number)
    sums = _sums(link, roster, "loss", models, like)
    return {name: float(sums[name] / sums["count"]) for name in models}


def source_fisher(link: EdgeLink, roster: Roster, model: MetaModel) -> Tree:
    """The Fisher diagonal over the source nodes of all edges that answer."""
    vector = torch.zeros(tree.size(model.theta), dtype=next(iter(model.theta.values())).dtype)
    like = {"model": vector, "count": vector.sum()}
    sums = _sums(link, roster, "fisher", {"model": model}, like)
    return fisher(unflatten(sums["model"], model.theta), sums["count"])


def _sums(
    link: EdgeLink,
    roster: Roster,
    what: Literal["loss", "fisher"],
    models: Mapping[str, MetaModel],
    like: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Σ over edges, in the order of the roster, of what they reply."""
    addresses = {member.name: member.address for member in roster.members}
    least = math.ceil(link.settings.quorum * len(addresses))
    content = {
        name: torch.frombuffer(bytearray(model_bytes(model)), dtype=torch.uint8)
        for name, model in models.items()
    }
    extra = {"what": what, "models": list(content)}
    for _ in range(_ATTEMPTS):
        end, reasons, parts = time.monotonic() + link.settings.deadline, [], []
        here = link.connected(addresses.values(), len(addresses), end)
        messages = {
            member.address: roster.message(member, link.request, extra, content)
            for member in roster.members
            if member.address in here
        }
        replies = link.ask("measure", messages, end)
        for name, address in addresses.items():
            asked = {"run": link.request["run"], "what": what, "name": name}
            try:
                reply = checked_reply(replies.get(address, "no answer in time"), asked)
                parts.append(_read(reply, like))
            except FedmetaError as error:
                reasons.append(f"{name}: {error.problem}")
                link.waiting(f"edge {reasons[-1]}")
        if len(parts) >= least:
            return {name: torch.stack([each[name] for each in parts]).sum(0) for name in like}
    raise FleetError(
        f"{len(parts)} of {len(addresses)} edges told the {what} of the model, {least} are "
        f"needed ({reasons[0]})",
        "bring edges back and go on with --resume, or lower --quorum",
    )


def _read(reply: Message, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sums in a reply."""
    for name, leaf in like.items():
        found = reply.tensors.get(name)
        if found is None or (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
            raise FleetError(
                f"its {name} is missing or of another shape", "check the edge's version"
            )
        if not bool(found.isfinite().all()):
            raise FleetError(f"its {name} is not finite", "check the edge's version")
    return {name: reply.tensors[name] for name in like}
