"""What an edge does when the platform asks: introduce itself, take part in rounds, judge models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.config.spec import RunSpec
from fedmeta.core import randomness, tree
from fedmeta.core.errors import FedmetaError
from fedmeta.core.serialization import deserialize, serialize
from fedmeta.core.storage import private_folder, read_json, write_json
from fedmeta.core.tree import Tree
from fedmeta.data.few_classes import holders
from fedmeta.data.scaling import label_sums, sums_of
from fedmeta.engine.cohort import Share
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.fleet.edge_job import KeptJob, data_digest
from fedmeta.fleet.edge_promise import spend
from fedmeta.fleet.edge_state import EdgeState, RoundRequest, answered, restore
from fedmeta.fleet.mask_identity import identity
from fedmeta.fleet.masked_edge import mask_sum, memory_of, prepare_shares, reveal, whole_sum
from fedmeta.fleet.message import (
    Message,
    flatten,
    pack_contribution,
    unflatten,
    unpack_model,
)
from fedmeta.fleet.message_schema import NOTES, check_request, one_line
from fedmeta.fleet.shards import EdgeData, read_shard
from fedmeta.priors.importance import fisher_sums
from fedmeta.training.job import Job
from fedmeta.training.prior_strength import source_losses
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.robust_sum import RobustSum
from fedmeta.uplink.uplink import refusals

FILE = "edge.json"
_RESIDUAL = "edge.residual"  # slot of what the edge could not send yet


@dataclass(frozen=True)
class Edge:
    """A device, or a gateway that serves several.

    Args:
        name: like no other in the fleet; the same after every restart.
        data: its samples.
        execution: settings of this machine that override the run's: device, threads, memory.
        certs: folder with its node key and the authority's certificate; empty: there are none.
    """

    name: str
    data: EdgeData
    execution: Mapping[str, Any] = field(default_factory=dict)
    certs: str = ""

    def save(self, home: Path) -> None:
        """Write it to the folder where the edge keeps all of its files."""
        private_folder(home)
        write_json(home / FILE, serialize(self), private=True)

    @classmethod
    def load(cls, home: Path) -> Edge:
        """The edge that lives in a folder."""
        about = read_json(home / FILE, "description of the edge")
        data = deserialize(EdgeData, about["data"], "data")
        return cls(str(about["name"]), data, about["execution"], str(about.get("certs", "")))


def answer(
    home: Path, kind: str, facts: str, tensors: bytes, kept: KeptJob | None = None
) -> tuple[str, bytes]:
    """The reply to a message of a `transport.Kind`, both as `Message.encoded` has them.

    An error that a person can fix is sent to the platform as one line. A process that answers many
    messages gives a `KeptJob`, so that it need not prepare the same job for each of them.
    """
    kept = kept or KeptJob()
    acts: dict[str, Callable[[Path, Message], Message]] = {
        "introduce": introduce,
        "prepare": prepare_sum,
        "round": partial(take_part, kept),
        "reveal": reveal,
        "measure": partial(measure, kept),
    }
    try:
        request = Message.decoded(facts, tensors)
        check_request(kind, request)
        reply = acts[kind](home, request)
    except FedmetaError as error:
        reply = Message({"refused": one_line(error)})
    return reply.encoded()


def introduce(home: Path, question: Message) -> Message:
    """Who this edge is: its nodes' names and sizes, and the sums that common scaling needs.

    Of the samples only n, Σx and Σx² over all of them are sent, of labels that are values n, Σy and
    Σy², and else which classes there are and how many of its nodes have samples of each.
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
    if held_by := holders(federation):
        facts["holders"] = held_by
        facts["few_classes"] = federation.few_classes
    if settings.uplink.secure_aggregation:
        facts["key"] = identity(home, edge.name, edge.certs, question.facts["run"])
    data, tensors = settings.data_settings, dict[str, torch.Tensor]()
    if (values := label_sums(federation, data.label_scaling)) is not None:
        facts["label_count"] = values.count
        tensors |= {
            "label_total": torch.from_numpy(values.total),
            "label_squares": torch.from_numpy(values.squares),
        }
    if data.scaling_kind != "none":
        held = [part for node in federation.nodes for part in (node.support, node.query)]
        sums = sums_of(federation.inputs, np.concatenate(held), data.scaling_kind)
        facts["count"] = sums.count
        tensors |= {
            "total": torch.from_numpy(sums.total),
            "squares": torch.from_numpy(sums.squares),
        }
    return Message(facts, tensors)


def prepare_sum(home: Path, request: Message) -> Message:
    """Shares for a masked sum to come."""
    return prepare_shares(home, Edge.load(home).certs, request)


def take_part(jobs: KeptJob, home: Path, request: Message) -> Message:
    """Σ contributions of this edge's nodes to a round; computed once, however often it is asked.

    Raises:
        StaleError, LostStateError: see `edge_state.answered`.
    """
    started = time.perf_counter()
    facts = request.facts
    digest = request.digest(but=["life", "mask"])  # on which the sum does not depend
    asked = RoundRequest(facts["round"], facts["life"], facts["counted"], digest)
    stored = EdgeState(memory_of(home, facts["run"]))
    if answered(stored.entries(), asked):
        reply = stored.reply(asked.round)
        return mask_sum(home, facts, reply) if "mask" in facts else reply
    job = _job(jobs, home, request)
    share = deserialize(Share, facts["share"], "share")
    with machine(job.layout.execution):
        cohort = replace(job.cohort, share=share)
        # The edge shortens its sum, not what its nodes add to it on this machine.
        # A robust sum is the platform's: it needs what several edges send.
        uplink = replace(job.uplink, compression=Compression(), robust=RobustSum())
        engine = LocalEngine(job.algorithm, cohort, job.layout, uplink=uplink)
        theta = job.model.theta
        like = job.algorithm.broadcast(engine.start(theta)[0])
        shared = unflatten(request.tensors["shared"], like)
        first = request.tensors.get("start")
        known = {name: shared[name] for name in theta} if first is None else unflatten(first, theta)
        nodes = engine.start(known)[1]
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
        "notes": [one_line(line) for line in (*engine.notes(), *refused)][:NOTES],
    }
    if job.uplink.secure_aggregation:
        whole = whole_sum(total, shared, job.uplink)
        reply = Message({**about, **whole.facts}, whole.tensors)
    else:
        reply = Message(about, pack_contribution(total, shared, wire))
    spend(stored.folder, RunSpec.from_dict(facts["table"]))
    stored.save(asked, {**nodes, **left}, reply)
    return mask_sum(home, facts, reply) if job.uplink.secure_aggregation else reply


def measure(jobs: KeptJob, home: Path, request: Message) -> Message:
    """What this edge's nodes say of models that they are sent: sums over all nodes, nothing else.

    "loss": Σ D_i ℓ_i(model) for every model, ℓ_i the loss on query samples after adaptation, and
    Σ D_i. "fisher": Σ squared gradients of single query samples, and how many there are.
    """
    facts, job = request.facts, _job(jobs, home, request)
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


def _job(jobs: KeptJob, home: Path, request: Message) -> Job:
    """What this edge has to compute, with its own data and machine."""
    edge = Edge.load(home)
    return jobs.prepared(edge.name, edge.data, edge.execution, request)
