"""Nodes as tensors: many nodes of different sizes in one batch, or one node as it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedmeta.core.errors import DataError
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.data.federation import Federation, Node, Positions
from fedmeta.data.pool import Array
from fedmeta.data.scaling import Scaling


def pack(
    federation: Federation,
    nodes: Sequence[Node],
    scaling: Scaling,
    dtype: torch.dtype = torch.float32,
    sizes: tuple[int, int] | None = None,
) -> NodeData:
    """Nodes side by side: inputs (nodes, samples, *shape), labels and mask (nodes, samples).

    Shorter sets are padded with their own first sample (zeros could be NaN in somebody's loss),
    where the mask is 0. Class labels are int64; regression labels, (nodes, samples, outputs),
    scaled, and the mask have the type of the inputs.

    Args:
        federation: the pool.
        nodes: which nodes, in this order.
        scaling: applied to the inputs, and to labels that are values.
        dtype: floating type of the tensors.
        sizes: support and query length, so that several packs share a shape; None: the longest.
    """
    if not nodes:
        raise DataError(f"there are no nodes of {federation.name} to pack", "give at least one")
    longest = longest_sets(nodes)
    sizes = sizes or longest
    if sizes[0] < longest[0] or sizes[1] < longest[1]:
        raise DataError(
            f"sizes are {sizes} but the longest support and query sets have {longest} samples",
            "give at least these",
        )
    support = _pack([node.support for node in nodes], sizes[0], federation, scaling, dtype)
    query = _pack([node.query for node in nodes], sizes[1], federation, scaling, dtype)
    return NodeData(support, query)


def pack_precise(
    federation: Federation,
    nodes: Sequence[Node],
    scaling: Scaling,
    dtype: torch.dtype = torch.float32,
    size: int | None = None,
) -> Samples:
    """The precise samples of nodes side by side, padded as `pack` does.

    Args:
        federation, nodes, scaling, dtype: see `pack`.
        size: the padded length, so that several packs share a shape; None: the longest.
    """
    # A node without any has padding alone, and that must be some sample.
    spare = [node.support[:1] for node in nodes]
    sets = [node.precise for node in nodes]
    size = size or max(1, *(len(each) for each in sets))
    return _pack(sets, size, federation, scaling, dtype, spare)


def longest_sets(nodes: Sequence[Node]) -> tuple[int, int]:
    """The length of the longest support and of the longest query set, in samples."""
    return max(len(node.support) for node in nodes), max(len(node.query) for node in nodes)


def unpacked(
    federation: Federation, node: Node, scaling: Scaling, dtype: torch.dtype = torch.float32
) -> NodeData:
    """One node without padding and without an axis of nodes; its mask is 1 everywhere."""
    support, query = (
        _samples(positions, np.ones(len(positions)), federation, scaling, dtype)
        for positions in (node.support, node.query)
    )
    return NodeData(support, query)


def _pack(
    sets: Sequence[Positions],
    size: int,
    federation: Federation,
    scaling: Scaling,
    dtype: torch.dtype,
    padding: Sequence[Positions] | None = None,
) -> Samples:
    lengths = np.array([len(positions) for positions in sets])
    mask = np.arange(size) < lengths[:, None]
    positions = np.repeat(np.array([each[0] for each in padding or sets])[:, None], size, axis=1)
    positions[mask] = np.concatenate(sets)
    return _samples(positions, mask, federation, scaling, dtype)


def _samples(
    positions: Positions, mask: Array, federation: Federation, scaling: Scaling, dtype: torch.dtype
) -> Samples:
    labels = federation.labels[positions]
    if federation.task.kind == "classification":
        scaled = torch.tensor(labels, dtype=torch.int64)
    else:
        scaled = scaling.scaled_labels(labels, dtype)
    inputs = scaling.apply(federation.inputs[positions], dtype)
    return Samples(inputs, scaled, torch.tensor(mask, dtype=dtype))
