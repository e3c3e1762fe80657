"""A resolved execution with the objective in the form its path wants, and how to map over nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedmeta.config.execution import Execution
from fedmeta.core.objective import Objective
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.engine.memory import halved, out_of_memory
from fedmeta.engine.nodewise.layers import NodewiseLayers
from fedmeta.engine.unrolled import UnrolledLayers
from fedmeta.models.functional import FunctionalModel


class Store(Protocol):
    """The samples of some nodes, as trees of tensors with a node axis."""

    def __len__(self) -> int:
        """How many nodes there are."""
        ...

    def chunk(self, positions: Tensor) -> Any:
        """Samples of the nodes at those positions, padded to a shape that is the same for all."""
        ...

    def single(self, position: int) -> Any:
        """Samples of one node without padding, with a node axis of length 1."""
        ...


@dataclass(frozen=True)
class Layout:
    """A resolved execution, and the objective in the form that its path wants."""

    execution: Execution
    objective: Objective

    def map(self, function: Callable[..., Any], store: Store, *arguments: Any) -> Any:
        """Call `function(data, *arguments)` for every node; results have a node axis.

        When memory runs out, fewer nodes are computed at once.

        Args:
            function: of one node's samples and arguments.
            store: the nodes' samples.
            arguments: trees of tensors with a node axis.
        """
        parts, rest, chunk = [], torch.arange(len(store)), self.execution.chunk or 1
        while len(rest) > 0:
            rows = rest[:chunk]
            try:
                parts.append(self._chunk(function, store, rows, arguments))
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or len(rows) == 1:
                    raise
                chunk = halved(len(rows), error, self.execution.torch_device)
                continue
            rest = rest[len(rows) :]
        return map_leaves(lambda *leaves: torch.cat(leaves), *parts)

    def _chunk(
        self, function: Callable[..., Any], store: Store, rows: Tensor, arguments: Any
    ) -> Any:
        there = rows.to(self.execution.torch_device)
        mine = map_leaves(lambda leaf: leaf[there], arguments)
        if self.execution.path == "batched":
            return torch.func.vmap(function)(store.chunk(rows), *mine)
        data = store.single(int(rows[0]))
        one = map_leaves(lambda leaf: leaf[0], (data, *mine))
        return map_leaves(lambda leaf: leaf.unsqueeze(0), function(*one))


def predictor(
    model: FunctionalModel, execution: Execution
) -> Callable[[Tree, Tensor, Tensor | None], Tensor]:
    """The model as a path computes it: node-wise layers if batched, in the chosen precision."""
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in model.inference.modules())

    def predict(theta: Tree, inputs: Tensor, key: Tensor | None) -> Tensor:
        with ExitStack() as contexts:
            if execution.path == "batched":
                contexts.enter_context(NodewiseLayers())
                if recurrent:
                    contexts.enter_context(UnrolledLayers())
            if execution.precision == "bf16":
                kind = execution.torch_device.type
                # No cache: under torch.func it would outlive the tensors it was made from.
                half = torch.autocast(kind, torch.bfloat16, cache_enabled=False)
                contexts.enter_context(half)
            return model(theta, inputs, key).to(execution.torch_dtype)

    return predict
