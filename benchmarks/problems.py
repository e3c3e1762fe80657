"""Synthetic federations of the sizes that are measured; the speed does not depend on the pixels."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.data import Federation, Node, Task
from fedmeta.models.networks import ModelSettings, build

CLASSES = 10
SUPPORT = QUERY = 15  # samples per node: the paper's 20 to 40, half of them support
SEED = 0


class Samples(NamedTuple):
    """One node's samples as tensors."""

    support_inputs: Tensor
    support_labels: Tensor
    query_inputs: Tensor
    query_labels: Tensor


@dataclass(frozen=True, eq=False)
class Problem:
    """A network and a federation of equal nodes, and the settings that all competitors share.

    Args:
        network: its name in the tables.
        model: the network; a module as it is, with its weights.
        federation: sources only, inputs that need no scaling.
        step_size: α of the adaptation.
        penalty: Σρ_i of ADMM, so that the step does not shrink with the number of nodes.
        meta_step_size: β of Per-FedAvg.
    """

    network: str
    model: ModelSettings | nn.Module
    federation: Federation
    step_size: float = 0.01
    penalty: float = 12.0
    meta_step_size: float = 0.1

    @property
    def nodes(self) -> int:
        """How many nodes there are; they have equal weights."""
        return len(self.federation.nodes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, channels first."""
        return tuple(self.federation.inputs.shape[1:])

    def module(self, device: str) -> nn.Module:
        """The network with the initial weights that everyone starts from."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model).to(device)
        return build(self.model, self.shape, CLASSES, SEED).to(device)

    def start(self, device: str, seed: int) -> dict[str, Tensor]:
        """Initial parameters of a repeat."""
        assert isinstance(self.model, ModelSettings), "a module has weights of its own"
        module = build(self.model, self.shape, CLASSES, seed).to(device)
        return {name: leaf.detach() for name, leaf in module.named_parameters()}

    def samples(self, device: str) -> list[Samples]:
        """Every node's samples on the device."""
        inputs = torch.from_numpy(self.federation.inputs).to(device)
        labels = torch.from_numpy(self.federation.labels).to(device)
        return [
            Samples(
                inputs[node.support], labels[node.support], inputs[node.query], labels[node.query]
            )
            for node in self.federation.nodes
        ]


def cifar(nodes: int) -> Problem:
    """The paper's CIFAR-10 network on 3×32×32 images."""
    model = ModelSettings("cnn", activation="elu", last_pooling="average")
    return Problem("cifar-10", model, federation((3, 32, 32), nodes), penalty=28.0)


def fashion(nodes: int) -> Problem:
    """The paper's Fashion-MNIST network on 1×28×28 images."""
    model = ModelSettings("cnn", activation="elu")
    return Problem("fashion-mnist", model, federation((1, 28, 28), nodes))


def perceptron(hidden: int, nodes: int) -> Problem:
    """64 inputs, one hidden layer, 10 outputs; with 64 hidden units the network for digits."""
    model = ModelSettings("mlp", hidden=(hidden,))
    return Problem(perceptron_name(hidden), model, federation((64,), nodes))


def perceptron_name(hidden: int) -> str:
    """What tables call the perceptron with so many hidden units.

    Example:
        >>> perceptron_name(64)
        'mlp-64-64-10'
    """
    return f"mlp-64-{hidden}-{CLASSES}"


def parameters(network: str) -> int:
    """How many parameters a perceptron has, from its name.

    Example:
        >>> parameters("mlp-64-64-10")
        4810
    """
    widths = [int(width) for width in network.split("-")[1:]]
    return sum((before + 1) * after for before, after in pairwise(widths))


def federation(shape: tuple[int, ...], nodes: int) -> Federation:
    """Equal nodes with samples of that shape."""
    rng = np.random.default_rng(SEED)
    total = nodes * (SUPPORT + QUERY)
    inputs = rng.standard_normal((total, *shape), dtype=np.float32)
    labels = rng.integers(0, CLASSES, total)
    rows = np.arange(total).reshape(nodes, SUPPORT + QUERY)
    members = [Node(f"n{i}", "source", row[:SUPPORT], row[SUPPORT:]) for i, row in enumerate(rows)]
    task = Task("classification", CLASSES, tuple(str(c) for c in range(CLASSES)))
    return Federation(inputs, labels, task, members, name="random samples")
