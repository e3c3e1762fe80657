"""What an engine has of its nodes: samples, facts and states, picked and written in rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Algorithm, NodeState
from fedmeta.config.execution import Execution
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import map_leaves
from fedmeta.data.packing import longest_sets
from fedmeta.engine.cohort import Cohort, Standing, keyed, standing_of
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.repeat_axis import RepeatAxis
from fedmeta.engine.samples import NodeStore, StackedStores, fits_resident
from fedmeta.engine.states import allocate, write


class NodeTable:
    """The nodes that are computed here: of one cohort, or of several side by side.

    Args:
        algorithm: has the penalties ρ_i.
        cohorts: the nodes, their scaling and the seed of each.
        execution: device, dtype and where states are kept.
        ranks: which share of the nodes is computed here.
        axis: whether there are several cohorts.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        cohorts: Sequence[Cohort],
        execution: Execution,
        ranks: Ranks,
        axis: RepeatAxis,
    ) -> None:
        self._execution, self._axis, self._alone = execution, axis, ranks.size == 1
        self.mine = ranks.share(len(cohorts[0].federation.sources))
        everyone = [standing_of(algorithm, one, execution) for one in cohorts]
        self.penalty = axis.join([one.penalty.sum() for one in everyone])  # Σρ_i of all nodes
        self.weight = axis.join([one.weight for one in everyone])  # w_i of all nodes
        self._standing: Standing = axis.join([self._share(one) for one in everyone])
        self._keys, self._round = self._standing.key.cpu(), 0
        self._keyed: Standing | None = self._standing
        self._whole: Tensor | None = None  # Σw_i of all nodes
        self._store = _store(cohorts, self.mine, execution, axis)
        self.copies: torch.cuda.Stream | None = None  # copies states while a GPU computes
        if execution.torch_device.type == "cuda":
            self.copies = torch.cuda.Stream(execution.torch_device)  # type: ignore[no-untyped-call]

    def begin(self, number: int) -> None:
        """Give every node its random key of a round; it is made when somebody asks for it."""
        self._round, self._keyed = number, None

    @property
    def standing(self) -> Standing:
        """The standing facts of the nodes here, with their keys of this round."""
        if self._keyed is None:
            self._keyed = keyed(self._standing, self._keys, self._round)
        return self._keyed

    @property
    def resident(self) -> bool:
        """Whether the samples of all nodes stay on the device, as they are."""
        return isinstance(self._store, NodeStore) and self._store.resident

    def allocated(self, one: NodeState) -> NodeState:
        """Room for the states of all nodes here, like that of one."""
        return allocate(one, len(self.mine), self._execution, self._axis.nodes)

    def here(self, positions: Tensor) -> Tensor:
        """Those of some nodes that are computed here: from positions among all to places here."""
        if self._alone:
            return positions
        mine = (positions >= self.mine.start) & (positions < self.mine.stop)
        return positions[mine] - self.mine.start

    def weight_of(self, positions: Tensor) -> Tensor:
        """Σw_i of the nodes at those positions among all."""
        weight: Tensor
        if len(positions) < self.weight.shape[-1] or not self._alone:
            weight = self.pick(positions, self.weight).sum(-1)
            return weight
        if self._whole is None:
            self._whole = self.weight.sum(-1)
        return self._whole

    def arguments(
        self, rows: Tensor, nodes: NodeState, *, single: bool, draws: bool = True
    ) -> tuple[NodeState, NodeData, Standing]:
        """States, samples and standing facts of the nodes at some positions, on the device.

        Args:
            rows: positions among the nodes here.
            nodes: states of all of them.
            single: it is one node, whose samples are not padded.
            draws: somebody looks at the keys of this round.
        """
        if self.copies is not None and self._execution.streams:
            main = torch.cuda.current_stream()
            with torch.cuda.stream(self.copies):
                states = self._to_device(self.pick(rows, nodes))
            main.wait_stream(self.copies)
            map_leaves(lambda leaf: leaf.record_stream(main), states)
        else:
            states = self._to_device(self.pick(rows, nodes))
        if single and isinstance(self._store, NodeStore):
            data = self._store.single(int(rows[0]))
        else:
            data = self._store.chunk(rows)
        return states, data, self.pick(rows, self.standing if draws else self._standing)

    def pick(self, rows: Tensor, tensors: Any) -> Any:
        """The rows of some nodes."""
        if len(rows) == len(self.mine) and self._alone:
            return tensors  # the same ones every round, which recordings need not copy
        return map_leaves(lambda leaf: leaf[self._axis.index(rows, leaf.device)], tensors)

    def put(self, nodes: NodeState, rows: Tensor, updated: NodeState) -> None:
        """Write the new states of some nodes to where they are kept."""
        if self.copies is None or not self._execution.streams:
            self.write(nodes, rows, updated)
            return
        main = torch.cuda.current_stream()
        kept = map_leaves(torch.clone, updated)  # a recording's results are overwritten by the next
        self.copies.wait_stream(main)
        with torch.cuda.stream(self.copies):
            self.write(nodes, rows, kept)
        map_leaves(lambda leaf: leaf.record_stream(self.copies), kept)

    def write(self, nodes: NodeState, rows: Tensor, updated: NodeState) -> None:
        """The same without waiting for a copy."""
        named = [(slot, name) for slot, leaves in updated.items() for name in leaves]
        places = [nodes[slot][name] for slot, name in named]
        if places:
            values = [updated[slot][name] for slot, name in named]
            write(places, self._axis.index(rows, places[0].device), values)

    def settle(self) -> None:
        """Wait until states are in their place."""
        if self.copies is not None:
            torch.cuda.current_stream().wait_stream(self.copies)

    def _to_device(self, states: NodeState) -> NodeState:
        device = self._execution.torch_device
        if device.type == "cpu":
            return states
        moved: NodeState = map_leaves(lambda leaf: leaf.to(device, non_blocking=True), states)
        return moved

    def _share(self, standing: Standing) -> Standing:
        mine: Standing = map_leaves(lambda leaf: leaf[self.mine.start : self.mine.stop], standing)
        return mine


def _store(
    cohorts: Sequence[Cohort], mine: range, execution: Execution, axis: RepeatAxis
) -> NodeStore | StackedStores:
    """The samples of the nodes computed here, padded to one shape for all cohorts."""
    lengths = [longest_sets(one.federation.sources) for one in cohorts]
    lengths += [one.share.sizes for one in cohorts if one.share is not None]
    sizes = max(support for support, _ in lengths), max(query for _, query in lengths)
    stores = []
    for one in cohorts:
        nodes = one.federation.sources[mine.start : mine.stop]
        resident = fits_resident(one.federation, nodes, execution, len(cohorts))
        stores.append(NodeStore(one.federation, nodes, one.scaling, execution, resident, sizes))
    return StackedStores(stores) if axis.several else stores[0]
