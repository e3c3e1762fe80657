"""What an edge does when the platform asks: introduce itself, take part in rounds, judge models."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core import randomness, tree
from fedmeta.core.errors import DataError, FedmetaError
from fedmeta.core.serialization import deserialize, serialize
from fedmeta.core.storage import read_json, write_json, writing
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation, Task
from fedmeta.data.scaling import Scaling, sums_of
from fedmeta.engine.cohort import Share
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.fleet.edge_state import EdgeState, RoundRequest, answered, restore
from fedmeta.fleet.message import (
    Message,
    MessageError,
    flatten,
    pack_contribution,
    unflatten,
    unpack_model,
)
from fedmeta.fleet.secure_rounds import mask_sum, public_key, reveal
from fedmeta.fleet.shards import EdgeData, read_shard, with_classes
from fedmeta.priors.importance import fisher_sums
from fedmeta.training.job import Job, prepare
from fedmeta.training.prior_strength import source_losses
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.uplink import refusals, with_secrets

FILE = "edge.json"
_RESIDUAL = "edge.residual"  # slot of what the edge could not send yet
_NOTES = 5  # lines that a reply may carry


@dataclass(frozen=True)
class Edge:
    """A device, or a gateway that serves several.

    Args:
        name: like no other in the fleet; the same after every restart.
        data: its samples.
        execution: settings of this machine that override the run's: device, threads, memory.
    """

    name: str
    data: EdgeData
    execution: Mapping[str, Any] = field(default_factory=dict)

    def save(self, home: Path) -> None:
        """Write it to the folder where the edge keeps all of its files."""
        with writing(home):
            home.mkdir(parents=True, exist_ok=True)
        write_json(home / FILE, serialize(self))

    @classmethod
    def load(cls, home: Path) -> Edge:
        """The edge that lives in a folder."""
        about = read_json(home / FILE, "description of the edge")
        return cls(
            str(about["name"]), deserialize(EdgeData, about["data"], "data"), about["execution"]
        )


def answer(home: Path, kind: str, facts: str, tensors: bytes) -> tuple[str, bytes]:
    """The reply to a message of a `transport.Kind`, both as `Message.encoded` has them.

    An error that a person can fix is sent to the platform as one line.
    """
    act = {"introduce": introduce, "round": take_part, "reveal": reveal, "measure": measure}[kind]
    try:
        reply = act(home, Message.decoded(facts, tensors))
    except FedmetaError as error:
        reply = Message({"refused": str(error)})
    return reply.encoded()


def introduce(home: Path, question: Message) -> Message:
    """Who this edge is: its nodes' names and sizes, and the sums that common scaling needs.

    Of the samples only n, Σx and Σx² over all of them are sent, and which classes there are.
    """
    edge, settings = Edge.load(home), RunSpec.from_dict(question.facts["table"])
    federation = read_shard(edge.data, settings.data_settings, settings.training.seed, edge.name)
    facts: dict[str, Any] = {
        "name": edge.name,
        "nodes": [[node.name, len(node.support), len(node.query)] for node in federation.nodes],
        "data": data_digest(federation),
        "task": serialize(federation.task),
        "shape": list(federation.inputs.shape[1:]),
        "bytes": federation.inputs.dtype == "uint8",
        "features": list(federation.features),
    }
    if settings.uplink.secure_aggregation:
        facts["key"] = public_key(home)
    if settings.data_settings.scaling == "none":
        return Message(facts)
    held = [
        torch.from_numpy(part) for node in federation.nodes for part in (node.support, node.query)
    ]
    sums = sums_of(federation.inputs, torch.cat(held).numpy(), settings.data_settings.scaling)
    return Message(
        {**facts, "count": sums.count},
        {"total": torch.from_numpy(sums.total), "squares": torch.from_numpy(sums.squares)},
    )


def data_digest(federation: Federation) -> str:
    """A fingerprint of who the nodes are and how much each has."""
    sizes = ((node.name, len(node.support), len(node.query)) for node in federation.nodes)
    return hashlib.sha256(repr(list(sizes)).encode()).hexdigest()[:16]


def take_part(home: Path, request: Message) -> Message:
    """Σ contributions of this edge's nodes to a round; computed once, however often it is asked.

    Raises:
        StaleError, LostStateError: see `edge_state.answered`.
    """
    started = time.perf_counter()
    facts = request.facts
    digest = request.digest(but=["life"])  # on which the reply does not depend
    asked = RoundRequest(facts["round"], facts["life"], facts["counted"], digest)
    if not str(facts["run"]).isalnum():
        raise MessageError(f"run {facts['run']!r} has no proper name", "check the platform")
    stored = EdgeState(home / "memory" / facts["run"])
    if answered(stored.entries(), asked):
        return stored.reply(asked.round)
    job, share = _job(Edge.load(home), request)
    with machine(job.layout.execution):
        cohort = replace(job.cohort, share=share)
        # The edge shortens its sum, not what its nodes add to it on this machine.
        uplink = replace(job.uplink, compression=Compression())
        engine = LocalEngine(job.algorithm, cohort, job.layout, uplink=uplink)
        theta = job.model.theta
        like = job.algorithm.broadcast(engine.start(theta)[0])
        shared = unflatten(request.tensors["shared"], like)
        first = request.tensors.get("start")
        known = {name: shared[name] for name in theta} if first is None else unflatten(first, theta)
        nodes = with_secrets(engine.start(known)[1])
        kept: NodeState = {}
        if asked.counted > 0:
            kept = stored.states(asked.counted)
            restore(nodes, kept)
        total = engine.contributed(shared, nodes, asked.round)
        wire, left = _shortened(job.uplink.compression, total, kept, asked)
    names = [node.name for node in job.federation.sources]
    refused = [f"node {name} was refused {n} times" for name, n in refusals(nodes, names).items()]
    about = {
        "round": asked.round,
        "run": facts["run"],
        "name": facts["name"],
        "seconds": round(time.perf_counter() - started, 3),
        "notes": [*engine.notes(), *refused][:_NOTES],
    }
    if job.uplink.secure_aggregation:
        hidden = mask_sum(home, facts, total, shared)
        reply = Message({**about, **hidden.facts}, hidden.tensors)
    else:
        reply = Message(about, pack_contribution(total, shared, wire))
    stored.save(asked, {**nodes, **left}, reply)
    return reply


def measure(home: Path, request: Message) -> Message:
    """What this edge's nodes say of models that they are sent: sums over all nodes, nothing else.

    "loss": Σ D_i ℓ_i(model) for every model, ℓ_i the loss on query samples after adaptation, and
    Σ D_i. "fisher": Σ squared gradients of single query samples, and how many there are.
    """
    facts, edge = request.facts, Edge.load(home)
    job, _ = _job(edge, request)
    settings = RunSpec.from_dict(facts["table"])
    sums: dict[str, torch.Tensor] = {}
    sizes = torch.tensor([node.size for node in job.federation.sources], dtype=torch.float64)
    execution = job.layout.execution
    for name in facts["models"]:
        model = unpack_model(request.tensors[name], settings.model_settings, job.loss)
        if facts["what"] == "fisher":
            squares, count = fisher_sums(model, job.federation, execution.torch_device)
            sums |= {name: flatten(squares, list(model.theta)), "count": count.cpu()}
        else:
            losses = source_losses(model, job.federation, execution, job.training.seed)
            each = torch.tensor(losses, dtype=torch.float64)
            sums |= {name: (sizes * each).sum(), "count": sizes.sum()}
    return Message({key: facts[key] for key in ("run", "what", "name")}, sums)


def _shortened(
    compression: Compression, total: Contribution, kept: NodeState, asked: RoundRequest
) -> tuple[Tree | None, NodeState]:
    """The sum as it goes over the wire, and what is left for the next one (error feedback)."""
    if compression.method == "none":
        return None, {}
    wanted = total.update
    if _RESIDUAL in kept:
        wanted = tree.add(wanted, kept[_RESIDUAL])
    wire = compression.encoded(wanted, randomness.key(asked.round))
    return wire, {_RESIDUAL: tree.subtract(wanted, compression.decoded(wire, wanted))}


def _job(edge: Edge, request: Message) -> tuple[Job, Share]:
    """What this edge has to compute, with its own data and machine."""
    facts = request.facts
    settings = RunSpec.from_dict(merged([facts["table"], {"execution": dict(edge.execution)}]))
    federation = read_shard(edge.data, settings.data_settings, settings.training.seed, edge.name)
    if data_digest(federation) != facts["data"]:
        raise DataError(
            f"the data of edge {edge.name} are no longer those it joined with",
            "put them back, or start the edge in a new folder under another name",
        )
    federation = with_classes(federation, deserialize(Task, facts["task"], "task"))
    job = prepare(settings, federation, scaling=Scaling.from_tensors(request.tensors))
    return job, deserialize(Share, facts["share"], "share")
