"""The targets of models: who is judged, and their samples as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmeta.config.execution import Execution
from fedmeta.core.errors import DataError
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import map_leaves
from fedmeta.data.federation import Federation, Node
from fedmeta.data.packing import longest_sets, pack, pack_precise
from fedmeta.data.scaling import Scaling


class JudgedSets(NamedTuple):
    """What a node adapts on, and what it is judged on: its query and perhaps its precise set."""

    support: Samples
    judged: tuple[Samples, ...]


@dataclass(frozen=True, eq=False)
class Targets:
    """Nodes that adapt a model and are judged, usually all targets of a federation.

    Args:
        federation: has the samples.
        nodes: which nodes.
        scaling: of inputs and labels.
        seed: of mini-batches, where the adaptation draws any.
    """

    federation: Federation
    nodes: Sequence[Node]
    scaling: Scaling
    seed: int

    def __post_init__(self) -> None:
        if not self.nodes:
            raise DataError(f"{self.federation.name} has no target nodes", "raise target_share")


class TargetStore:
    """The samples of the targets of several models, one model's after the other's.

    Args:
        targets: of every model.
        execution: device and dtype.
        resident: keep the samples once they were packed, for those who evaluate again; where they
            take more than a sixteenth of the memory budget, they are packed anew all the same.
    """

    def __init__(
        self, targets: Sequence[Targets], execution: Execution, *, resident: bool = False
    ) -> None:
        self.targets, self._execution = targets, execution
        everyone = [node for each in targets for node in each.nodes]
        self.owner = torch.tensor([i for i, each in enumerate(targets) for _ in each.nodes])
        self.sizes = longest_sets(everyone)
        self.precise = max(len(node.precise) for node in everyone)
        self._nodes = everyone
        samples = targets[0].federation.inputs[:1].size * (sum(self.sizes) + self.precise)
        room = len(everyone) * samples * execution.torch_dtype.itemsize <= execution.budget / 16
        self._kept: dict[tuple[int, ...], JudgedSets] | None = {} if resident and room else None

    def __len__(self) -> int:
        return len(self._nodes)

    def label_units(self) -> Tensor:
        """What an error of 1 is in the labels' own unit, (models, outputs)."""
        outputs = self.targets[0].federation.task.outputs
        found = np.stack([each.scaling.label_deviation(outputs) for each in self.targets])
        # Squares of them may be too large for a short type.
        dtype = torch.promote_types(self._execution.torch_dtype, torch.float32)
        return torch.tensor(found, dtype=dtype, device=self._execution.torch_device)

    def chunk(self, positions: Tensor) -> JudgedSets:
        """Samples of the nodes at those positions, padded to a shape that is the same for all."""
        places = tuple(positions.tolist())
        if self._kept is not None and places in self._kept:
            return self._kept[places]
        parts = [
            self._packed(self.targets[owner], [self._nodes[place] for place in mine], padded=True)
            for owner, mine in groupby(places, key=lambda place: int(self.owner[place]))
        ]
        sets: JudgedSets = map_leaves(lambda *leaves: torch.cat(leaves), *parts)
        if self._kept is not None:
            if sum(map(len, self._kept)) + len(places) > len(self):  # chunks of another size
                self._kept.clear()
            self._kept[places] = sets
        return sets

    def single(self, position: int) -> JudgedSets:
        """Samples of one node without padding, with a node axis of length 1."""
        owner = self.targets[int(self.owner[position])]
        return self._packed(owner, [self._nodes[position]], padded=False)

    def _packed(self, owner: Targets, nodes: Sequence[Node], *, padded: bool) -> JudgedSets:
        about = owner.federation, nodes, owner.scaling, self._execution.torch_dtype
        support, query = pack(*about, sizes=self.sizes if padded else None)
        judged = [query]
        if self.precise:
            judged.append(pack_precise(*about, size=self.precise if padded else None))
        device = self._execution.torch_device
        sets = JudgedSets(support, tuple(judged))
        moved: JudgedSets = map_leaves(lambda leaf: leaf.to(device), sets)
        return moved
