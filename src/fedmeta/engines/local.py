"""The local engine: all nodes of a federation in this process, batched or one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedmeta import randomness, tree
from fedmeta.algorithms.base import Algorithm, Contribution, Fleet, NodeState, PlatformState
from fedmeta.data.federation import Federation, Node
from fedmeta.data.packing import NodeData, Samples, pack
from fedmeta.data.scaling import Scaling
from fedmeta.engines.execution import (
    Execution,
    chosen_path,
    convolves,
    fitting_chunk,
    node_bytes,
    with_threads,
)
from fedmeta.errors import ModelError
from fedmeta.functional import FunctionalModel
from fedmeta.objective import Facts, Objective
from fedmeta.participation import Participation
from fedmeta.storage import payload_bytes
from fedmeta.tree import Tree

_NODES, _PARTICIPATION = 21, 22  # purposes of the two families of random draws


class RoundResult(NamedTuple):
    """What a round leaves: the platform's state, all node states, and the numbers to log."""

    state: PlatformState
    nodes: NodeState
    metrics: dict[str, float]


class NodeStore:
    """The packed samples of some nodes, resident on the device or packed chunk by chunk."""

    def __init__(
        self,
        federation: Federation,
        nodes: Sequence[Node],
        scaling: Scaling,
        execution: Execution,
        resident: bool,
    ) -> None:
        self.nodes = nodes
        self._federation, self._scaling, self._execution = federation, scaling, execution
        self._sizes = (
            max(len(node.support) for node in nodes),
            max(len(node.query) for node in nodes),
        )
        self._all = self._pack(nodes) if resident else None

    def __len__(self) -> int:
        return len(self.nodes)

    def chunk(self, positions: Tensor) -> NodeData:
        """Samples of the nodes at those positions, padded to a shape that is the same for all."""
        if self._all is None:
            return self._pack([self.nodes[i] for i in positions.tolist()])
        if len(positions) == len(self.nodes):
            return self._all
        rows = positions.to(self._execution.torch_device)
        data: NodeData = _tree_map(lambda leaf: leaf[rows], self._all)
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
        moved: NodeData = _tree_map(lambda leaf: leaf.to(self._execution.torch_device), data)
        return moved


@dataclass(frozen=True)
class Layout:
    """A resolved execution, and the objective in the form that its path wants."""

    execution: Execution
    objective: Objective

    def map(self, function: Callable[..., Any], store: NodeStore, *arguments: Any) -> Any:
        """Call `function(data, *arguments)` for every node; results have a node axis.

        Args:
            function: of one node's samples and arguments.
            store: the nodes' samples.
            arguments: trees of tensors with a node axis.
        """
        everyone = torch.arange(len(store))
        parts = [result for _, result in self.chunks(function, store, everyone, *arguments)]
        return _tree_map(lambda *leaves: torch.cat(leaves), *parts)

    def chunks(
        self,
        function: Callable[..., Any],
        store: NodeStore,
        positions: Tensor,
        *arguments: Any,
    ) -> Iterator[tuple[Tensor, Any]]:
        """Like `map`, for the nodes at some positions, chunk by chunk: (positions, results)."""
        size = self.execution.chunk or 1
        # torch splits an empty tensor into one empty chunk, which nobody can compute.
        for rows in torch.split(positions, size) if len(positions) else ():
            there = rows.to(self.execution.torch_device)
            if len(rows) == len(store):
                mine = arguments
            else:
                mine = _tree_map(lambda leaf, there=there: leaf[there], arguments)
            if self.execution.path == "batched":
                results = torch.func.vmap(function)(store.chunk(rows), *mine)
            else:
                data = store.single(int(rows[0]))
                one = _tree_map(lambda leaf: leaf[0], (data, *mine))
                results = _tree_map(lambda leaf: leaf.unsqueeze(0), function(*one))
            yield rows, results


class LocalEngine:
    """Runs rounds of an algorithm over the source nodes of a federation.

    Args:
        algorithm: what nodes and platform do.
        federation: the nodes and their samples.
        scaling: what inputs are centred and divided by.
        layout: resolved execution and objective.
        participation: who is counted in a round.
        seed: of every random draw.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        scaling: Scaling,
        layout: Layout,
        participation: Participation,
        seed: int,
    ) -> None:
        self._algorithm, self._layout, self._participation = algorithm, layout, participation
        execution = layout.execution
        device, dtype = execution.torch_device, execution.torch_dtype
        sources = federation.sources
        sizes = torch.tensor([node.size for node in sources], dtype=torch.float64)
        weights = (sizes / sizes.sum()).to(dtype)
        penalties = algorithm.penalties([node.name for node in sources], weights)
        self._weights, self._penalties = weights.to(device), penalties.to(device)
        self._keys = node_keys(sources, seed).to(device)
        self._draws = randomness.fold(randomness.key(seed), _PARTICIPATION)
        self._store = NodeStore(
            federation, sources, scaling, execution, _fits_resident(federation, sources, execution)
        )
        self.fleet = Fleet(penalties.sum().to(device), len(sources))
        self._bytes: dict[str, float] = {}  # per node and round; the same in every round

    def start(self, theta: Tree) -> tuple[PlatformState, NodeState]:
        """The platform's and all nodes' states before the first round."""
        init = torch.func.vmap(lambda facts: self._algorithm.init_node(theta, facts))
        # What is the same for all nodes comes out of vmap as one shared row: each needs its own.
        nodes = _tree_map(lambda leaf: leaf.contiguous(), init(self._facts(0)))
        return self._algorithm.init(theta, self.fleet), nodes

    def round(self, state: PlatformState, nodes: NodeState, number: int) -> RoundResult:
        """One round; `nodes` is updated in place where a node was counted."""
        shared = self._algorithm.broadcast(state)
        counted = self._participation.counted(self.fleet.nodes, number, self._draws)

        def step(data: NodeData, node: NodeState, facts: Facts) -> tuple[Contribution, NodeState]:
            return self._algorithm.node_step(self._layout.objective, shared, node, data, facts)

        facts, total = self._facts(number), None
        for rows, (contributions, updated) in self._layout.chunks(
            step, self._store, counted, nodes, facts
        ):
            subtotal = _tree_map(lambda leaf: leaf.sum(0), contributions)
            total = subtotal if total is None else _tree_map(torch.add, total, subtotal)
            for slot, leaves in updated.items():
                for name, leaf in leaves.items():
                    nodes[slot][name][rows.to(leaf.device)] = leaf
        if total is None:  # every upload was lost
            total = Contribution(tree.zeros_like(state.theta), self._weights.new_zeros(()), {})
        state, metrics = self._algorithm.platform_step(state, total, self.fleet)
        weight = self._weights[counted.to(self._weights.device)].sum()
        metrics |= readable(total.metrics, weight)
        numbers: dict[str, float] = {"counted": len(counted)}
        numbers |= {name: float(value) for name, value in metrics.items()}
        if not self._bytes and len(counted) > 0:
            scalars = {"weight": total.weight, **total.metrics}
            self._bytes = {
                "bytes_down": payload_bytes(shared),
                "bytes_up": payload_bytes({**total.update, **scalars}),
            }
        return RoundResult(state, nodes, numbers | self._bytes)

    def _facts(self, number: int) -> Facts:
        count = self.fleet.nodes
        return Facts(
            weight=self._weights,
            penalty=self._penalties,
            round=torch.full_like(self._weights, number),
            position=torch.arange(count, device=self._weights.device),
            key=randomness.fold(self._keys, number),
        )


def readable(sums: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Summed scalars as people read them.

    Losses (names that end in "loss") are divided by Σw_i, the squared primal residual becomes a
    root, and everything else stays the sum it is.
    """
    values = {}
    for name, total in sums.items():
        if name == "primal_squared":
            values["primal_residual"] = total.sqrt()
        else:
            values[name] = total / weight if name.endswith("loss") else total
    return values


def node_keys(nodes: Sequence[Node], seed: int) -> Tensor:
    """A random key per node that depends on the seed and the node's name alone."""
    names = torch.tensor([randomness.name_key(node.name) for node in nodes], dtype=torch.int64)
    return randomness.fold(randomness.fold(randomness.key(seed), _NODES), names)


def lay_out(
    execution: Execution,
    model: FunctionalModel,
    loss: Callable[[Tensor, Tensor], Tensor],
    federation: Federation,
    scaling: Scaling,
    algorithm: Algorithm,
) -> Layout:
    """Resolve path, chunk size and threads; settings that are resolved already stay as they are.

    Args:
        execution: what the user asked for.
        model: on the device and in the dtype of the execution.
        loss: one loss per sample.
        federation: its largest nodes and their number size the chunks.
        scaling: of the inputs.
        algorithm: its state counts towards memory, and "measure" times it.
    """
    sources = federation.sources
    sample = pack(federation, sources[:1], scaling, execution.torch_dtype).support.inputs[0, :1]
    sample = sample.to(execution.torch_device)
    samples = max(len(n.support) for n in sources) + max(len(n.query) for n in sources)

    def laid(path: Literal["batched", "loop"]) -> Layout:
        per_node = node_bytes(model, sample, samples, execution.torch_dtype)
        held = 2 * tree.size(model.theta) * execution.torch_dtype.itemsize * len(sources)
        if _fits_resident(federation, sources, execution):
            held += _data_bytes(federation, sources, execution)
        chunk = fitting_chunk(execution, per_node, held, len(sources))
        if path == "loop":
            chosen = replace(execution, path=path, chunk=1)
            return Layout(with_threads(chosen), Objective(model, loss))
        chosen = replace(execution, path=path, chunk=chunk)
        # Under vmap a native convolution has a forward-mode derivative of its gradient only.
        return Layout(with_threads(chosen), Objective(model, loss, forward_mode=convolves(model)))

    def seconds(layout: Layout, nodes: Sequence[Node]) -> float:
        return _seconds_per_round(layout, model, federation.with_nodes(nodes), scaling, algorithm)

    path = chosen_path(execution, model) if execution.path == "auto" else execution.path
    if path == "loop":
        return laid("loop")
    batched = laid("batched")
    try:  # on two nodes: some layers have no batching rule, and only trying tells
        seconds(batched, sources[:2])
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if execution.path == "batched":
            raise ModelError(
                f"this model cannot be batched over nodes ({str(error).splitlines()[0]})",
                'use path "loop"',
            ) from error
        return laid("loop")
    if path == "batched":
        return batched
    loop = laid("loop")
    return batched if seconds(batched, sources) <= seconds(loop, sources) else loop


def _seconds_per_round(
    layout: Layout,
    model: FunctionalModel,
    federation: Federation,
    scaling: Scaling,
    algorithm: Algorithm,
) -> float:
    """Seconds per round, the better of two after one to warm up."""
    engine = LocalEngine(algorithm, federation, scaling, layout, Participation(), seed=0)
    state, nodes = engine.start(model.theta)
    times = []
    for number in (1, 2, 3):
        start = time.perf_counter()
        engine.round(state, nodes, number)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _data_bytes(federation: Federation, nodes: Sequence[Node], execution: Execution) -> int:
    longest = max(len(n.support) for n in nodes) + max(len(n.query) for n in nodes)
    numbers = federation.inputs[:1].size + federation.task.outputs + 1
    return int(len(nodes) * longest * numbers * execution.torch_dtype.itemsize)


def _fits_resident(federation: Federation, nodes: Sequence[Node], execution: Execution) -> bool:
    """Whether all packed samples may stay in memory: they get a quarter of the budget."""
    return _data_bytes(federation, nodes, execution) <= execution.budget / 4


def _tree_map(function: Callable[..., Any], *trees: Any) -> Any:
    return pytree.tree_map(function, *trees)
