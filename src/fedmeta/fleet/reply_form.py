"""What a reply to a round looks like: found by computing one, of a node without samples.

Which numbers nodes send beside their update is the algorithm's own business, so nothing is written
down here that could differ from what edges do.
"""

from __future__ import annotations

from dataclasses import replace

from fedmeta.core import randomness
from fedmeta.engine.local import LocalEngine
from fedmeta.fleet.message import pack_contribution
from fedmeta.fleet.message_schema import Tensors
from fedmeta.training.job import Job
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.robust_sum import RobustSum


def reply_form(job: Job) -> Tensors:
    """Shape and dtype of every tensor with which an edge of this job answers.

    Args:
        job: the platform's; its source nodes have sizes, and blank samples.
    """
    smallest = min(job.federation.sources, key=lambda node: node.size)
    cohort = replace(job.cohort, federation=job.federation.with_nodes([smallest]))
    compression = job.uplink.compression
    uplink = replace(job.uplink, compression=Compression(), robust=RobustSum())
    engine = LocalEngine(job.algorithm, cohort, job.layout, uplink=uplink)
    state, nodes = engine.start(job.model.theta)
    shared = job.algorithm.broadcast(state)
    total = engine.contributed(shared, nodes, 1)
    wire = None
    if compression.method != "none":
        wire = compression.encoded(total.update, randomness.key(1).to(total.weight.device))
    packed = pack_contribution(total, shared, wire)
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in packed.items()}
