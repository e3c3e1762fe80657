"""How far the numbers in a network reach: what eight bits must cover, as nodes can tell it.

A node finds the smallest and the largest number at every place of the network over its own samples
and sends these extremes alone. A range is the mean over source nodes of their extremes: a sum is
all that leaves a node, and one that is far out hardly stretches a range. What lies outside is
rounded to its end. Whoever makes steps of a range stretches it to hold 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Federation
from fedmeta.models.meta_model import MetaModel

Ranges = dict[str, tuple[float, float]]
"""Least and largest input by the name of the layer, in the order in which layers are called."""

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def mean_extremes(federation: Federation, tell: Callable[[Any], Tensor]) -> Tensor:
    """The mean over source nodes of what they tell, (2, places): least and largest numbers.

    Args:
        federation: only its sources are looked at.
        tell: a node's extremes, (2, places), from its raw samples.
    """
    if not federation.sources:
        raise DataError(
            "there are no source nodes to take the ranges of numbers from", "export in float32"
        )
    owned = (np.concatenate([node.support, node.query]) for node in federation.sources)
    return torch.stack([tell(federation.inputs[own]).double() for own in owned]).mean(dim=0)


def activation_ranges(model: MetaModel, federation: Federation) -> Ranges:
    """What enters every linear layer and convolution on the source nodes.

    Args:
        model: as it was trained; nodes adapt its head, which changes nothing before it.
        federation: its own; only the sources are looked at.
    """
    names: list[str] = []

    def tell(inputs: Any) -> Tensor:
        told = node_ranges(model, inputs)
        names[:] = told
        return torch.tensor(list(told.values()), dtype=torch.float64).T

    low, high = mean_extremes(federation, tell).tolist()
    return dict(zip(names, zip(low, high, strict=True), strict=True))


def node_ranges(model: MetaModel, inputs: Any) -> Ranges:
    """The same over raw samples of one node: what it would send.

    Args:
        model: as it was trained.
        inputs: raw samples, (n, *input_shape).
    """
    module, found = model.module(), Ranges()

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            low, high = float(given[0].min()), float(given[0].max())
            least, largest = found.get(name, (low, high))  # a layer may be called several times
            found[name] = min(least, low), max(largest, high)

        return hook

    for name, layer in module.named_modules():
        if isinstance(layer, LAYERS):
            layer.register_forward_pre_hook(remember(name))  # the module is a copy
    with torch.no_grad():
        module(model.scaled(inputs))
    return found
