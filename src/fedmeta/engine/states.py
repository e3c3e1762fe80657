"""Where nodes keep what they remember: on the device, in host memory, or in a file on disk.

States are plain tensors with a node axis. Away from the device, a chunk's rows are copied there
when it is computed and back afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import NodeState
from fedmeta.config.execution import Execution
from fedmeta.core.tree import copy_into, map_leaves


def allocate(one: NodeState, nodes: int, execution: Execution, axis: int) -> NodeState:
    """Room for the states of all nodes, like that of one.

    Args:
        one: a state with a node axis of length 1.
        nodes: how many.
        execution: says where.
        axis: which axis is the nodes' (1 when several repeats are stacked in front of it).
    """
    make = {"host": _on_host, "disk": _on_disk}.get(execution.states, _on_device)

    def room(leaf: Tensor) -> Tensor:
        states = make(leaf, (*leaf.shape[:axis], nodes, *leaf.shape[axis + 1 :]))
        return as_kernels_like(states, axis + 1)

    states: NodeState = map_leaves(room, one)
    return states


def as_kernels_like(leaf: Tensor, lead: int) -> Tensor:
    """The same numbers as our GPU kernels want them in memory: weights of images channels-last.

    Args:
        leaf: a parameter, or many.
        lead: how many axes stand in front of the parameter's own.
    """
    if not leaf.is_cuda or leaf.ndim - lead != 4:
        return leaf
    return leaf.movedim(-3, -1).contiguous().movedim(-1, -3)


def _on_device(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _on_host(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    # Pinned pages are what a GPU can copy while it computes.
    return torch.empty(shape, dtype=like.dtype, pin_memory=like.is_cuda)


def _on_disk(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    kind = torch.empty(0, dtype=like.dtype).numpy().dtype
    if prod(shape) == 0:
        return torch.empty(shape, dtype=like.dtype)
    # The file has no name: it goes when the last tensor on it does, however the run ends.
    with tempfile.TemporaryFile(prefix="fedmeta-states-") as file:
        return torch.from_numpy(np.memmap(file, kind, "w+", shape=shape))


Index = tuple[slice | Tensor, ...]


def _is_there(place: Tensor, value: Tensor) -> bool:
    """Whether a value is what stands at a place already."""
    same = place.data_ptr() == value.data_ptr() and place.dtype == value.dtype
    return same and place.shape == value.shape and place.stride() == value.stride()


def write(places: Sequence[Tensor], index: Index, values: Sequence[Tensor]) -> None:
    """Put values at some rows of states, without waiting for the device where that can be."""
    if isinstance(index[-1], slice):
        pairs = [(place[index], value) for place, value in zip(places, values, strict=True)]
        apart = [(a, b) for a, b in pairs if not _is_there(a, b)]
        copy_into([a for a, _ in apart], [b for _, b in apart])
    else:
        for place, value in zip(places, values, strict=True):
            place[index] = value.to(place.device)
