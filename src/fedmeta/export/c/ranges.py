"""The ranges of scaled inputs and of every layer's results, which C code needs all of.

What a node tells and how it is put together: `fedmeta.export.activation_ranges`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmeta.data.federation import Federation
from fedmeta.export.activation_ranges import mean_extremes
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
    told = mean_extremes(federation, lambda raw: node_extremes(model, model.scaled(raw)))
    low, high = told.tolist()
    return Ranges(tuple(low), tuple(high))
