"""Several processes, one simulation: `torchrun` starts them, each computes its share of the nodes.

Every rank sums the contributions of its own nodes, one all-reduce adds the sums, and all ranks take
the same platform step. Node states stay with the rank that computes the node.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from fedmeta.algorithms.algorithm import NodeState
from fedmeta.core.errors import SettingError
from fedmeta.core.tree import map_leaves


@dataclass(frozen=True)
class Ranks:
    """This process among those of a simulation.

    Args:
        rank: its number, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks to people."""
        return self.rank == 0

    def share(self, nodes: int) -> range:
        """Which nodes this process computes: a block, as even as can be.

        Example:
            >>> [list(Ranks(r, 2).share(5)) for r in (0, 1)]
            [[0, 1, 2], [3, 4]]
        """
        if nodes < self.size:
            raise SettingError(
                f"there are {self.size} ranks but only {nodes} source nodes",
                f"start at most {nodes} processes",
            )
        small, larger = divmod(nodes, self.size)
        start = self.rank * small + min(self.rank, larger)
        return range(start, start + small + (self.rank < larger))

    def sum(self, total: Any) -> Any:
        """The sum over all ranks of a tree of tensors, in one message."""
        if self.size == 1:
            return total
        leaves, structure = pytree.tree_flatten(total)
        message = torch.cat([leaf.reshape(-1) for leaf in leaves])
        dist.all_reduce(message)
        parts = torch.split(message, [leaf.numel() for leaf in leaves])
        pairs = zip(leaves, parts, strict=True)
        return pytree.tree_unflatten([part.reshape(leaf.shape) for leaf, part in pairs], structure)

    def gathered(self, states: NodeState, nodes: int) -> NodeState | None:
        """The states of all nodes in host memory, at the leading rank; None at the others.

        Args:
            states: of this rank's share.
            nodes: how many there are in all.
        """
        if self.size == 1:
            return states
        everyone: NodeState = {}
        for slot, leaves in states.items():
            for name, leaf in leaves.items():
                if not self.leads:
                    dist.send(leaf.cpu().contiguous(), 0)
                    continue
                parts = [leaf.cpu()]
                for other in range(1, self.size):
                    rows = len(Ranks(other, self.size).share(nodes))
                    part = torch.empty((rows, *leaf.shape[1:]), dtype=leaf.dtype)
                    dist.recv(part, other)
                    parts.append(part)
                everyone.setdefault(slot, {})[name] = torch.cat(parts)
        return everyone if self.leads else None

    def scatter(self, everyone: NodeState | None, states: NodeState, nodes: int) -> None:
        """Fill this rank's states from those of all nodes, which the leading rank has."""
        if self.size == 1 and everyone is not None:
            map_leaves(lambda place, leaf: place.copy_(leaf), states, everyone)
            return
        for slot, leaves in states.items():
            for name, leaf in leaves.items():
                if not self.leads:
                    part = torch.empty(leaf.shape, dtype=leaf.dtype)
                    dist.recv(part, 0)
                    leaf.copy_(part)
                    continue
                assert everyone is not None, "the leading rank has read them"
                whole = everyone[slot][name].cpu()
                leaf.copy_(whole[: len(leaf)])
                for other in range(1, self.size):
                    share = Ranks(other, self.size).share(nodes)
                    dist.send(whole[share.start : share.stop].contiguous(), other)

    def agree(self, tensors: Any) -> Any:
        """The leading rank's tensors, at every rank; all give a tree of the same shapes."""
        if self.size > 1:
            for leaf in pytree.tree_leaves(tensors):
                dist.broadcast(leaf, 0)
        return tensors

    def from_leader(self, thing: Any) -> Any:
        """What the leading rank knows, in JSON's types, at every rank."""
        if self.size == 1:
            return thing
        text = bytearray(json.dumps(thing).encode()) if self.leads else bytearray()
        length = torch.tensor(len(text))
        dist.broadcast(length, 0)
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.leads:
            letters = torch.frombuffer(text, dtype=torch.uint8)
        dist.broadcast(letters, 0)
        return json.loads(bytes(letters.tolist()))


@contextmanager
def started(device: str) -> Iterator[Ranks]:
    """This process's place in a simulation that `torchrun` started, or alone.

    Args:
        device: "cpu" sums by gloo, "cuda" by NCCL on the GPU of the rank's own number.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or dist.is_initialized():
        yield current()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    try:
        yield current()
    finally:
        dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End a process that `torchrun` started, without the interpreter's own end.

    A thread of gloo that lets go of a tensor while the interpreter ends is unwound through C++ that
    allows none: the process aborts after all its work is done ("terminate called without an active
    exception"), and torchrun stops the other ranks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def current() -> Ranks:
    """The ranks of the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()
