"""How far the inputs of a network's layers reach: what eight bits must cover.

Every source node looks at its own samples and tells two numbers per layer, the smallest and the
largest value that enters it; the least and the largest of all nodes are kept. 0 is always covered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.data.federation import Federation
from fedmeta.models.meta_model import MetaModel

Ranges = dict[str, tuple[float, float]]
"""Least and largest input by the name of the layer, in the order in which layers are called."""

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def activation_ranges(model: MetaModel, federation: Federation) -> Ranges:
    """What enters every linear layer and convolution, over the samples of all source nodes.

    Args:
        model: as it was trained; nodes adapt its head, which changes nothing before it.
        federation: its own; only the sources are looked at.
    """
    found: Ranges = {}
    for node in federation.sources:
        own = np.concatenate([node.support, node.query])
        for name, (low, high) in node_ranges(model, federation.inputs[own]).items():
            least, largest = found.get(name, (0.0, 0.0))
            found[name] = min(least, low), max(largest, high)
    return found


def node_ranges(model: MetaModel, inputs: Any) -> Ranges:
    """The same over raw samples of one node: what it would send.

    Args:
        model: as it was trained.
        inputs: raw samples, (n, *input_shape).
    """
    module, found = model.module(), Ranges()

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            least, largest = found.get(name, (0.0, 0.0))  # a layer may be called several times
            found[name] = min(least, float(given[0].min())), max(largest, float(given[0].max()))

        return hook

    for name, layer in module.named_modules():
        if isinstance(layer, LAYERS):
            layer.register_forward_pre_hook(remember(name))  # the module is a copy
    with torch.no_grad():
        module(model.scaled(inputs))
    return found
