"""The samples of nodes as an engine takes them: resident on the device, or packed when needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmeta.config.execution import Execution
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import map_leaves
from fedmeta.data.federation import Federation, Node
from fedmeta.data.packing import longest_sets, pack
from fedmeta.data.scaling import Scaling


class NodeStore:
    """The packed samples of some nodes.

    Args:
        federation: has the pool of samples.
        nodes: which nodes.
        scaling: of the inputs.
        execution: device and dtype.
        resident: keep all of them on the device; otherwise they are packed chunk by chunk.
        sizes: padded lengths of support and query sets; None: the longest of these nodes.
    """

    def __init__(
        self,
        federation: Federation,
        nodes: Sequence[Node],
        scaling: Scaling,
        execution: Execution,
        resident: bool,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        self.nodes, self.resident = nodes, resident
        self._federation, self._scaling, self._execution = federation, scaling, execution
        self._sizes = sizes or longest_sets(nodes)
        self._all = self._pack(nodes) if resident else None

    def __len__(self) -> int:
        return len(self.nodes)

    def chunk(self, positions: Tensor) -> NodeData:
        """Samples of the nodes at those positions, padded to a shape that is the same for all."""
        if self._all is None:
            return self._pack([self.nodes[i] for i in positions.tolist()])
        if len(positions) == len(self.nodes):
            return self._all
        rows = rows_of(positions, self._execution.torch_device)
        data: NodeData = map_leaves(lambda leaf: leaf[rows], self._all)
        return data

    def single(self, position: int) -> NodeData:
        """Samples of one node without padding, with a node axis of length 1."""
        node = self.nodes[position]
        if self._all is None:
            return self._to_device(
                pack(self._federation, [node], self._scaling, self._execution.torch_dtype)
            )
        row = slice(position, position + 1)
        return NodeData(
            *(
                Samples(*(leaf[row, :size] for leaf in part))
                for part, size in zip(self._all, (len(node.support), len(node.query)), strict=True)
            )
        )

    def _pack(self, nodes: Sequence[Node]) -> NodeData:
        dtype = self._execution.torch_dtype
        return self._to_device(
            pack(self._federation, nodes, self._scaling, dtype, sizes=self._sizes)
        )

    def _to_device(self, data: NodeData) -> NodeData:
        moved: NodeData = map_leaves(lambda leaf: leaf.to(self._execution.torch_device), data)
        return moved


class StackedStores:
    """The samples of several federations with equally many nodes, one axis in front of the nodes'.

    Args:
        stores: one per federation, padded to the same sizes.
    """

    def __init__(self, stores: Sequence[NodeStore]) -> None:
        self._stores = stores
        self._everyone: NodeData | None = None

    def chunk(self, positions: Tensor) -> NodeData:
        """Samples of the nodes at those positions in every federation."""
        if len(positions) < len(self._stores[0]) or not self._stores[0].resident:
            return self._stacked(positions)
        if self._everyone is None:  # the same in every round
            self._everyone = self._stacked(positions)
        return self._everyone

    def _stacked(self, positions: Tensor) -> NodeData:
        data: NodeData = map_leaves(
            lambda *leaves: torch.stack(leaves), *(one.chunk(positions) for one in self._stores)
        )
        return data


def rows_of(positions: Tensor, device: torch.device) -> slice | Tensor:
    """Ascending positions as an index: a slice, which copies nothing, where there are no gaps."""
    if len(positions) == 0:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):
        return slice(first, last + 1)
    return positions.to(device)


def data_bytes(federation: Federation, nodes: Sequence[Node], execution: Execution) -> int:
    """Bytes of the packed samples of some nodes."""
    numbers = federation.inputs[:1].size + federation.task.outputs + 1
    return int(len(nodes) * sum(longest_sets(nodes)) * numbers * execution.torch_dtype.itemsize)


def fits_resident(
    federation: Federation, nodes: Sequence[Node], execution: Execution, repeats: int = 1
) -> bool:
    """Whether all packed samples may stay in memory: they get a quarter of the budget."""
    return repeats * data_bytes(federation, nodes, execution) <= execution.budget / 4
