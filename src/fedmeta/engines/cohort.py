"""Who is trained, and what stays the same about every node from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta import randomness
from fedmeta.algorithms.base import Algorithm
from fedmeta.data.federation import Federation, Node
from fedmeta.data.scaling import Scaling
from fedmeta.engines.execution import Execution
from fedmeta.objective import Facts
from fedmeta.tree import map_leaves

_NODES = 21  # the purpose of the nodes' random draws


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who is trained: a federation with its scaling, and the seed of all random draws.

    Args:
        federation: the nodes and their samples.
        scaling: what inputs are centred and divided by.
        seed: of every random draw.
    """

    federation: Federation
    scaling: Scaling
    seed: int


class Standing(NamedTuple):
    """What is fixed about every node: tensors with a node axis, see `Facts`.

    The keys alone differ from round to round, see `keyed`.
    """

    weight: Tensor
    penalty: Tensor
    position: Tensor
    key: Tensor


def node_keys(nodes: Sequence[Node], seed: int) -> Tensor:
    """A random key per node that depends on the seed and the node's name alone."""
    names = torch.tensor([randomness.name_key(node.name) for node in nodes], dtype=torch.int64)
    return randomness.fold(randomness.fold(randomness.key(seed), _NODES), names)


def standing_of(algorithm: Algorithm, cohort: Cohort, execution: Execution) -> Standing:
    """The standing facts of all source nodes of a cohort, on the device."""
    sources = cohort.federation.sources
    sizes = torch.tensor([node.size for node in sources], dtype=torch.float64)
    weights = (sizes / sizes.sum()).to(execution.torch_dtype)
    penalties = algorithm.penalties([node.name for node in sources], weights)
    places = torch.arange(len(sources))
    standing = Standing(weights, penalties, places, node_keys(sources, cohort.seed))
    moved: Standing = map_leaves(lambda leaf: leaf.to(execution.torch_device), standing)
    return moved


def keyed(standing: Standing, keys: Tensor, number: int) -> Standing:
    """The nodes with their random keys of a round, computed on the host from those of `keys`.

    Dozens of operations on a few integers: a GPU would take longer for them than for a layer.
    """
    key = randomness.fold(keys, number)
    if standing.weight.is_cuda:
        key = key.pin_memory()
    return standing._replace(key=key.to(standing.weight.device, non_blocking=True))


def facts_at(standing: Standing, moment: Tensor) -> Facts:
    """What nodes know in the round of the number `moment`, a tensor so that it can be replayed."""
    weight, penalty, position, key = standing
    return Facts(weight, penalty, moment.to(weight.dtype).expand_as(weight), position, key)
