"""The local engine: all nodes of a federation in this process, many at once or one by one.

A round is two pure functions, the sum over a chunk of nodes and the platform's step. Everything
else here is about running them well: in chunks that fit, on several threads or as GPU recordings,
for several repeats at once, with states streamed from where they are kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
)
from fedmeta.core import randomness, tree
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.objective import Facts
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.storage import payload_bytes
from fedmeta.core.tree import Tree, cloned, map_leaves
from fedmeta.data.packing import longest_sets
from fedmeta.engine.cohort import Cohort, Standing, facts_at, keyed, standing_of
from fedmeta.engine.execution import Execution
from fedmeta.engine.layout import Layout
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.recording import Recorder
from fedmeta.engine.round_metrics import Reading
from fedmeta.engine.samples import NodeStore, StackedStores, fits_resident, rows_of
from fedmeta.engine.stacked_priors import Tensors, prior_tensors, with_prior_tensors
from fedmeta.engine.states import Index, allocate, as_kernels_like, write
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

_AHEAD = 4  # chunks per thread handed out at a time

_log = logging.getLogger("fedmeta")


class RoundResult(NamedTuple):
    """What a round leaves: the platform's state, all node states, and the numbers to log."""

    state: PlatformState
    nodes: NodeState
    metrics: Reading


_Step = tuple[Contribution, Tree, Mapping[str, Tree], Metrics]
"""What a round computes: Σ contributions, θ, the platform's memory, and the numbers to log."""


class LocalEngine:
    """Runs rounds of an algorithm over the source nodes of a federation.

    With several cohorts (repeats with partitions and seeds of their own) all states and results
    have one more axis in front, the repeats'.

    Args:
        algorithm: what nodes and platform do; for several cohorts perhaps one each, which differ
            in the tensors of their priors alone.
        cohort: the nodes, their scaling and the seed; or several with equally many nodes.
        layout: resolved execution and objective.
        participation: who is counted in a round; several cohorts count everyone.
        ranks: which share of the nodes is computed here.
        uplink: what happens to contributions on their way; for several cohorts no "central" noise.
    """

    def __init__(
        self,
        algorithm: Algorithm | Sequence[Algorithm],
        cohort: Cohort | Sequence[Cohort],
        layout: Layout,
        participation: Participation = Participation(),
        ranks: Ranks = Ranks(),
        uplink: Uplink = Uplink(),
    ) -> None:
        own = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
        self._algorithm, self._objective = own[0], layout.objective
        self._execution, self._participation = layout.execution, participation
        self._ranks, self.chunk = ranks, layout.execution.chunk or 1
        self._uplink = uplink
        device = layout.execution.torch_device
        cohorts = [cohort] if isinstance(cohort, Cohort) else list(cohort)
        self._axis = 0 if isinstance(cohort, Cohort) else 1  # which axis is the nodes'
        if self._axis == 1 and layout.execution.path == "loop":
            raise SettingError(
                "nodes that are computed one by one have no repeats side by side",
                "train the repeats one after the other",
            )
        count = len(cohorts[0].federation.sources)
        if any(len(one.federation.sources) != count for one in cohorts):
            raise DataError(
                "the repeats have different numbers of source nodes", "train them one by one"
            )
        self._mine = ranks.share(count)
        standing = [standing_of(own[0], one, layout.execution) for one in cohorts]
        penalty = [one.penalty.sum() for one in standing]
        self._standing: Standing = self._join([self._cut(one) for one in standing])
        self._keys = self._standing.key.cpu()
        self._weight = self._join([one.weight for one in standing])
        self.fleet = Fleet(self._join(penalty), count)
        priors = [prior_tensors(each, self._standing.weight) for each in own]
        joined = self._join(priors * len(cohorts) if len(priors) == 1 else priors)
        self._prior: Tensors = map_leaves(lambda leaf: as_kernels_like(leaf, self._axis), joined)
        self._draws = randomness.fold(randomness.key(cohorts[0].seed), Purpose.PARTICIPATION)
        self._store = _store(cohorts, self._mine, layout.execution, self._axis)
        self._chunk_sum = self._lift(self._sum_of_chunk, (0, 0, 0, 0, None))
        self._platform_step = self._lift(self._step_of_platform)
        self._sum, self._platform = Recorder(self._chunk_sum), Recorder(self._platform_step)
        self._whole = Recorder(self._whole_round)
        self._bytes: dict[str, float] = {}  # per node and round; the same in every round
        self._notes: list[str] = []
        self._pool: ThreadPoolExecutor | None = None
        self._copies: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        batched = layout.execution.path == "batched"
        alone = ranks.size == 1 and uplink.privacy.dp != "central"  # whose noise comes between
        self._can_be_one_piece = device.type == "cuda" and batched and alone

    def start(self, theta: Tree) -> tuple[PlatformState, NodeState]:
        """The platform's and all nodes' states before the first round.

        Args:
            theta: the initial model; with several cohorts one for each, along the first axis.
        """

        def one_platform(theta: Tree, penalty: Tensor) -> tuple[Tree, Mapping[str, Tree]]:
            state = self._algorithm.init(theta, Fleet(penalty, self.fleet.nodes))
            return state.theta, state.memory

        def some_nodes(theta: Tree, shared: Tree, standing: Standing) -> NodeState:
            def init(facts: Facts) -> NodeState:
                own = self._algorithm.init_node(theta, facts)
                return {**own, **self._uplink.init_node(shared, facts)}

            return torch.func.vmap(init)(facts_at(standing, torch.zeros_like(standing.position[0])))

        theta = {name: as_kernels_like(leaf, self._axis) for name, leaf in theta.items()}
        state = PlatformState(*self._lift(one_platform)(theta, self.fleet.penalty))
        # Tensors of its own, whatever the algorithm made of θ.
        state = PlatformState(*map_leaves(torch.clone, (state.theta, dict(state.memory))))
        states: NodeState = {}
        shared = self._algorithm.broadcast(state)
        standing = keyed(self._standing, self._keys, 0)
        for rows in torch.split(torch.arange(len(self._mine)), self.chunk):
            some = self._lift(some_nodes)(theta, shared, self._pick(rows, standing))
            if not states:
                first = self._pick(torch.arange(1), some)
                states = allocate(first, len(self._mine), self._execution, self._axis)
            self._write(states, rows, some)
        return state, states

    def round(self, state: PlatformState, nodes: NodeState, number: int) -> RoundResult:
        """One round; `nodes` is updated in place where a node was counted.

        When memory runs out the chunk shrinks and the round goes on; see `notes`.
        """
        counted = self._participation.counted(self.fleet.nodes, number, self._draws)
        moment = torch.full((), number, dtype=torch.int64, device=self._execution.torch_device)
        self._standing = keyed(self._standing, self._keys, number)
        weight = self._pick(counted, self._weight).sum(-1)
        step = None
        if self._can_be_one_piece and len(counted) == self.fleet.nodes <= self.chunk:
            step = self._in_one_piece(state, nodes, moment, weight)
        if step is None:
            total = self._released(self._summed(state, nodes, counted, moment), number)
            if self._copies is not None:  # states are in their place when the numbers are
                torch.cuda.current_stream().wait_stream(self._copies)
            before = state.theta, dict(state.memory)
            step = (total, *self._platform(*before, total, self.fleet.penalty, weight, self._prior))
        total, theta, memory, metrics = step
        if self._copies is not None:  # a recording's results are overwritten by the next
            theta, memory = cloned((theta, memory))
        if not self._bytes and len(counted) > 0:
            self._bytes = self._traffic(self._algorithm.broadcast(state), total)
        known = {"counted": len(counted), **self._bytes}
        values, arrival = torch.stack(list(metrics.values()), dim=-1), None
        if values.is_cuda:
            here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = here.copy_(values, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        reading = Reading(list(metrics)[:-1], values, known, arrival)
        return RoundResult(PlatformState(theta, memory), nodes, reading)

    def contributed(self, shared: Tree, nodes: NodeState, number: int) -> Contribution:
        """The nodes' half of a round alone: Σ contributions of all nodes here.

        Args:
            shared: what the platform sent, see `Algorithm.broadcast`.
            nodes: updated in place.
            number: of the round.
        """
        moment = torch.full((), number, dtype=torch.int64, device=self._execution.torch_device)
        self._standing = keyed(self._standing, self._keys, number)
        total = self._totalled(shared, nodes, torch.arange(len(self._mine)), moment)
        assert total is not None, "there are nodes"
        return total

    def notes(self) -> list[str]:
        """What happened since the last look that people should know of."""
        notes, self._notes = self._notes, []
        return notes

    def _in_one_piece(
        self, state: PlatformState, nodes: NodeState, moment: Tensor, weight: Tensor
    ) -> _Step | None:
        """The whole round as one recording, when all nodes are computed at once; None: no room."""
        rows = torch.arange(len(self._mine))
        try:
            inputs = (*self._inputs(rows, nodes), moment, self.fleet.penalty, weight, self._prior)
            step, updated = self._whole(state.theta, dict(state.memory), *inputs)
        except torch.OutOfMemoryError as error:
            self._shrink(error, len(rows))
            return None
        self._put(nodes, rows, updated)
        if self._copies is not None:
            torch.cuda.current_stream().wait_stream(self._copies)
        whole: _Step = step
        return whole

    def _whole_round(
        self,
        theta: Tree,
        memory: dict[str, Tree],
        mine: NodeState,
        data: NodeData,
        standing: Standing,
        moment: Tensor,
        penalty: Tensor,
        weight: Tensor,
        prior: Tensors,
    ) -> tuple[_Step, NodeState]:
        """Both halves of a round for all nodes: pure."""
        shared = self._algorithm.broadcast(PlatformState(theta, memory))
        total, states = self._chunk_sum(shared, mine, data, standing, moment)
        return (total, *self._platform_step(theta, memory, total, penalty, weight, prior)), states

    def _released(self, total: Contribution, number: int) -> Contribution:
        """The sum as the platform may look at it."""
        if self._uplink.privacy.dp != "central":
            return total
        expected = self._participation.fraction * self.fleet.penalty
        key = randomness.fold(self._draws, number).to(expected.device)
        return self._uplink.released(total, self._weight.max(), expected, key)

    def _summed(
        self, state: PlatformState, nodes: NodeState, counted: Tensor, moment: Tensor
    ) -> Contribution:
        """Σ contributions of all counted nodes, those of other ranks included."""
        shared = self._algorithm.broadcast(state)
        here = counted[(counted >= self._mine.start) & (counted < self._mine.stop)]
        total = self._totalled(shared, nodes, here - self._mine.start, moment)
        if total is None and len(counted) > 0:  # other ranks have nodes: a sum of none, like theirs
            one = self._node_sum if self._execution.path == "loop" else self._sum
            some, _ = one(shared, *self._inputs(torch.arange(1), nodes), moment)
            total = map_leaves(torch.zeros_like, some)
        if total is None:  # every upload was lost
            none = torch.zeros_like(self.fleet.penalty)
            return Contribution(tree.zeros_like(shared), none, {})
        summed: Contribution = self._ranks.sum(total)
        return summed

    def _totalled(
        self, shared: Tree, nodes: NodeState, positions: Tensor, moment: Tensor
    ) -> Contribution | None:
        """Σ contributions of the nodes at those positions, chunk by chunk in their order."""
        total: Contribution | None = None
        while len(positions) > 0:
            done, chunks = 0, torch.split(positions, self.chunk)
            try:
                computed = self._computed(shared, nodes, chunks, moment)
                for rows, (subtotal, updated) in zip(chunks, computed, strict=True):
                    if total is None:
                        total = map_leaves(torch.clone, subtotal)
                    else:
                        total = map_leaves(torch.add, total, subtotal)
                    self._put(nodes, rows, updated)
                    done += len(rows)
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error):
                    raise
                self._shrink(error, min(self.chunk, len(positions) - done))
            positions = positions[done:]
        return total

    def _computed(
        self, shared: Tree, nodes: NodeState, chunks: Sequence[Tensor], moment: Tensor
    ) -> Iterator[tuple[Contribution, NodeState]]:
        """Sum and new states of every chunk, in order."""
        if self._execution.path == "loop":
            for rows in chunks:
                yield self._node_sum(shared, *self._inputs(rows, nodes), moment)
        elif self._copies is not None:
            ahead = self._inputs(chunks[0], nodes)
            for following in (*chunks[1:], None):
                inputs = ahead
                if following is not None:  # copied while the chunk before it is computed
                    ahead = self._inputs(following, nodes)
                yield self._sum(shared, *inputs, moment)
        else:
            yield from self._threaded(shared, nodes, chunks, moment)

    def _threaded(
        self, shared: Tree, nodes: NodeState, chunks: Sequence[Tensor], moment: Tensor
    ) -> Iterator[tuple[Contribution, NodeState]]:
        """Chunks on worker threads, one core each; recordings run side by side, plain calls alone.

        Plain calls go to a worker too: with another number of cores their last bits could differ.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._execution.workers, "fedmeta", initializer=torch.set_num_threads, initargs=(1,)
            )
        queue: deque[Future[Any]] = deque()
        try:
            for rows in chunks:
                inputs = (shared, *self._inputs(rows, nodes), moment)
                ready = self._sum.ready(*inputs)
                while queue and (
                    not ready.concurrent or len(queue) >= _AHEAD * self._execution.workers
                ):
                    yield queue.popleft().result()
                queue.append(self._pool.submit(ready.call, *inputs))
                if not ready.concurrent:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            wait(queue)

    def _sum_of_chunk(
        self, shared: Tree, mine: NodeState, data: NodeData, standing: Standing, moment: Tensor
    ) -> tuple[Contribution, NodeState]:
        """Σ contributions and new states of a chunk of nodes: pure."""

        def step(node: NodeState, data: NodeData, facts: Facts) -> tuple[Contribution, NodeState]:
            return self._sent_by_node(shared, node, data, facts)

        contributions, states = torch.func.vmap(step)(mine, data, facts_at(standing, moment))
        contributions, states = self._uplink.judged(contributions, standing.weight, mine, states)
        return map_leaves(lambda leaf: leaf.sum(0), contributions), states

    def _node_sum(
        self, shared: Tree, mine: NodeState, data: NodeData, standing: Standing, moment: Tensor
    ) -> tuple[Contribution, NodeState]:
        """The same for a single node as it is, without padding; there is nobody to judge it by."""
        node, samples, facts = map_leaves(
            lambda leaf: leaf[0], (mine, data, facts_at(standing, moment))
        )
        contribution, state = self._sent_by_node(shared, node, samples, facts)
        return contribution, map_leaves(lambda leaf: leaf.unsqueeze(0), state)

    def _sent_by_node(
        self, shared: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """What a node sends in answer to what it was sent, and its new state."""
        own = self._uplink.algorithm_part(node)
        contribution, state = self._algorithm.node_step(self._objective, shared, own, data, facts)
        return self._uplink.sent(contribution, node, state, facts)

    def _step_of_platform(
        self,
        theta: Tree,
        memory: dict[str, Tree],
        total: Contribution,
        penalty: Tensor,
        weight: Tensor,
        prior: Tensors,
    ) -> tuple[Tree, Mapping[str, Tree], Metrics]:
        """The platform's step and all numbers of the round: pure."""
        before, fleet = PlatformState(theta, memory), Fleet(penalty, self.fleet.nodes)
        algorithm = with_prior_tensors(self._algorithm, prior)
        after, metrics = platform_half(algorithm, before, total, fleet, weight)
        return after.theta, after.memory, metrics

    def _inputs(self, rows: Tensor, nodes: NodeState) -> tuple[NodeState, NodeData, Standing]:
        """States, samples and standing facts of the nodes at some positions, on the device."""
        if self._copies is not None and self._execution.streams:
            main = torch.cuda.current_stream()
            with torch.cuda.stream(self._copies):
                mine = self._to_device(self._pick(rows, nodes))
            main.wait_stream(self._copies)
            map_leaves(lambda leaf: leaf.record_stream(main), mine)
        else:
            mine = self._to_device(self._pick(rows, nodes))
        if self._execution.path == "loop" and isinstance(self._store, NodeStore):
            data = self._store.single(int(rows[0]))
        else:
            data = self._store.chunk(rows)
        return mine, data, self._pick(rows, self._standing)

    def _to_device(self, states: NodeState) -> NodeState:
        device = self._execution.torch_device
        moved: NodeState = map_leaves(lambda leaf: leaf.to(device, non_blocking=True), states)
        return moved

    def _put(self, nodes: NodeState, rows: Tensor, updated: NodeState) -> None:
        """Write the new states of some nodes to where they are kept."""
        if self._copies is None or not self._execution.streams:
            self._write(nodes, rows, updated)
            return
        main = torch.cuda.current_stream()
        kept = map_leaves(torch.clone, updated)  # a recording's results are overwritten by the next
        self._copies.wait_stream(main)
        with torch.cuda.stream(self._copies):
            self._write(nodes, rows, kept)
        map_leaves(lambda leaf: leaf.record_stream(self._copies), kept)

    def _index(self, rows: Tensor, device: torch.device) -> Index:
        """The index of some rows along the nodes' axis, for tensors on a device."""
        place = rows_of(rows, device)
        return (place,) if self._axis == 0 else (slice(None), place)

    def _pick(self, rows: Tensor, tensors: Any) -> Any:
        if len(rows) == len(self._mine) and self._ranks.size == 1:
            return tensors  # the same ones every round, which recordings need not copy
        return map_leaves(lambda leaf: leaf[self._index(rows, leaf.device)], tensors)

    def _write(self, nodes: NodeState, rows: Tensor, updated: NodeState) -> None:
        named = [(slot, name) for slot, leaves in updated.items() for name in leaves]
        places = [nodes[slot][name] for slot, name in named]
        if places:
            values = [updated[slot][name] for slot, name in named]
            write(places, self._index(rows, places[0].device), values)

    def _lift(self, function: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
        """A function of one cohort as one of several, if there are."""
        return function if self._axis == 0 else torch.func.vmap(function, axes)

    def _join(self, parts: Sequence[Any]) -> Any:
        if self._axis == 0:
            return parts[0]
        return map_leaves(lambda *leaves: torch.stack(leaves), *parts)

    def _cut(self, standing: Standing) -> Standing:
        mine: Standing = map_leaves(lambda leaf: leaf[self._mine.start : self._mine.stop], standing)
        return mine

    def _shrink(self, error: BaseException, nodes: int) -> None:
        """Fewer at once than the `nodes` that were too many."""
        if nodes == 1:
            raise SettingError(
                f"not even one node fits the memory of {self._execution.device} "
                f"({str(error).splitlines()[0]})",
                "use a smaller model or fewer samples per node, or another device",
            ) from error
        self.chunk = -(-nodes // 2)
        for recorder in (self._sum, self._whole):
            recorder.forget()
        if self._copies is not None:
            torch.cuda.empty_cache()
        note = (
            f"memory ran out: from here on {self.chunk} nodes are computed at once, and the last "
            "bits may differ from those of an undisturbed run"
        )
        _log.warning(note)
        self._notes.append(note)

    def _traffic(self, shared: Tree, total: Contribution) -> dict[str, float]:
        """Bytes of the messages of one node."""
        if self._axis == 1:
            shared, total = map_leaves(lambda leaf: leaf[0], (shared, total))
        scalars = {"weight": total.weight, **total.metrics}
        return {
            "bytes_down": payload_bytes(shared),
            "bytes_up": self._uplink.bytes_up(total.update, scalars),
        }


def platform_half(
    algorithm: Algorithm, before: PlatformState, total: Contribution, fleet: Fleet, weight: Tensor
) -> tuple[PlatformState, Metrics]:
    """The platform's step and all numbers of a round, from the sum of its contributions: pure.

    Args:
        algorithm, before, total, fleet: see `Algorithm.platform_step`.
        weight: Σw_i of the nodes that were counted.
    """
    after, metrics = algorithm.platform_step(before, total, fleet)
    metrics = {**readable(total.metrics, weight), **metrics}  # the platform knows better
    # The last one is for us: NaN if a parameter is not finite, else 0.
    values = {**metrics, "": tree.zero_or_nan(after.theta)}
    return after, {name: value.to(torch.float64) for name, value in values.items()}


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


def _store(
    cohorts: Sequence[Cohort], mine: range, execution: Execution, axis: int
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
    return stores[0] if axis == 0 else StackedStores(stores)


def _out_of_memory(error: BaseException) -> bool:
    refused = "allocate memory" in str(error)  # how torch's CPU allocator puts it
    return refused or isinstance(error, MemoryError | torch.OutOfMemoryError)
