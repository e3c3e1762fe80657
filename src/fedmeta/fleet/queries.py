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
from fedmeta.fleet.message import Message, MessageError, model_bytes, unflatten
from fedmeta.fleet.message_schema import Tensors, check_sums
from fedmeta.fleet.roster import Member, Roster
from fedmeta.fleet.transport import EdgeLink, FleetError, told
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
    form: Tensors = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in like.items()}
    for _ in range(_ATTEMPTS):
        end, reasons, parts = time.monotonic() + link.settings.deadline, [], []
        here = link.connected(addresses.values(), len(addresses), end)
        messages = {
            member.address: roster.message(
                member, link.request, extra, content, link.settings.max_weight
            )
            for member in roster.members
            if member.address in here
        }
        replies = link.ask("measure", messages, end)
        for member in roster.members:
            name, address = member.name, member.address
            asked = {"run": link.request["run"], "what": what, "name": name}
            try:
                reply = told(replies.get(address, "no answer in time"))
                check_sums(reply, asked, form)
                _check_count(reply, member, what)
                parts.append(reply.tensors)
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


def _check_count(reply: Message, member: Member, what: str) -> None:
    """Refuse an edge that speaks for other samples than it joined with."""
    known = sum(query + (support if what == "loss" else 0) for _, support, query in member.nodes)
    said = float(reply.tensors["count"])
    if said != known:
        raise MessageError(
            f"it speaks of {said:g} samples, and joined with {known}", "check its version"
        )
    if what == "fisher" and bool((reply.tensors["model"] < 0).any()):
        raise MessageError("a square is negative", "check its version")
