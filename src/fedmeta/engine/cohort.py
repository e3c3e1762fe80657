"""Who is trained, and what stays the same about every node from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.config.execution import Execution
from fedmeta.core import randomness
from fedmeta.core.objective import Facts
from fedmeta.core.randomness import Purpose
from fedmeta.core.tree import map_leaves
from fedmeta.data.federation import Federation, Node
from fedmeta.data.scaling import Scaling


@dataclass(frozen=True)
class Share:
    """What nodes must know of the fleet that they are a part of.

    Args:
        samples: ΣD_j over all source nodes of the fleet.
        first: how many source nodes come before those here.
        sizes: length that support and query sets are padded to everywhere.
    """

    samples: int
    first: int
    sizes: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who is trained: a federation with its scaling, and the seed of all random draws.

    Args:
        federation: the nodes and their samples.
        scaling: what inputs are centred and divided by.
        seed: of every random draw.
        share: of a larger fleet whose other nodes are elsewhere; None: these are all.
    """

    federation: Federation
    scaling: Scaling
    seed: int
    share: Share | None = None


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
    return randomness.fold(randomness.fold(randomness.key(seed), Purpose.NODES), names)


def weighed(
    algorithm: Algorithm,
    names: Sequence[str],
    sizes: Sequence[int],
    dtype: torch.dtype,
    everyone: int | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """w_i and ρ_i of nodes.

    Args:
        algorithm: has the penalties.
        names: of the nodes.
        sizes: their D_i.
        dtype: of the numbers.
        everyone: ΣD_j over all source nodes, for each if it differs; None: these are all.
    """
    held = torch.tensor(sizes, dtype=torch.float64)
    weights = (held / (held.sum() if everyone is None else everyone)).to(dtype)
    return weights, algorithm.penalties(names, weights)


def standing_of(algorithm: Algorithm, cohort: Cohort, execution: Execution) -> Standing:
    """The standing facts of all source nodes of a cohort, on the device."""
    sources, share = cohort.federation.sources, cohort.share
    weights, penalties = weighed(
        algorithm,
        [node.name for node in sources],
        [node.size for node in sources],
        execution.torch_dtype,
        share.samples if share else None,
    )
    places = torch.arange(len(sources)) + (share.first if share else 0)
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
