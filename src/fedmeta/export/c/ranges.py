"""The ranges that a network's numbers have on the source nodes, as nodes can tell them.

A node computes the smallest and the largest number of its scaled inputs and of every layer's
results over its own samples, and sends these extremes alone. The platform adds them up: a range is
the mean over nodes of their extremes, so that a sum is all that leaves a node, and one that is far
out stretches no range.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Federation
from fedmeta.export.c.chain import results_of
from fedmeta.models.meta_model import MetaModel

_AT_ONCE = 256


@dataclass(frozen=True)
class Ranges:
    """From where to where numbers go: of scaled inputs, then of the results of every layer."""

    low: tuple[float, ...]
    high: tuple[float, ...]


def node_extremes(model: MetaModel, inputs: Tensor) -> Tensor:
    """What a node tells: smallest and largest numbers, (2, layers + 1).

    Args:
        model: in float32 on the CPU.
        inputs: the node's scaled samples.
    """
    module, found = model.module(), []
    for start in range(0, len(inputs), _AT_ONCE):
        some = inputs[start : start + _AT_ONCE]
        results = [some, *results_of(module, some)]
        low, high = ([getattr(each, name)() for each in results] for name in ("amin", "amax"))
        found.append(torch.stack([torch.stack(low), torch.stack(high)]))
    whole = torch.stack(found)
    return torch.stack([whole[:, 0].amin(dim=0), whole[:, 1].amax(dim=0)])


def source_ranges(model: MetaModel, federation: Federation) -> Ranges:
    """The ranges of a model on the source nodes of a federation.

    Args:
        model: in float32 on the CPU.
        federation: with the source nodes' samples.
    """
    if not federation.sources:
        raise DataError(
            "there are no source nodes to take the ranges of numbers from", "export in float32"
        )
    total: Tensor | None = None
    for node in federation.sources:
        rows = [*node.support.tolist(), *node.query.tolist()]
        told = node_extremes(model, model.scaled(federation.inputs[rows])).double()
        total = told if total is None else total + told
    assert total is not None
    low, high = (total / len(federation.sources)).tolist()
    return Ranges(tuple(low), tuple(high))
