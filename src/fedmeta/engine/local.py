"""The local engine: all nodes of a federation in this process, many at once or one by one.

A round is two pure functions, the nodes' half and the platform's half (`round`). Here they are run:
chunk by chunk by a mapping (`mapping/`), or on a GPU both at once as one recording, for one cohort
of nodes or several repeats side by side (`repeat_axis`), fewer at once when memory runs out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

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
from fedmeta.algorithms.held_at_nodes import HeldAtNodes
from fedmeta.config.execution import Execution
from fedmeta.core import randomness, tree
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.objective import Facts
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.secret_random import SecretRandom
from fedmeta.core.storage import payload_bytes
from fedmeta.core.tree import Tree, cloned, map_leaves
from fedmeta.engine.cohort import Cohort, Standing, facts_at
from fedmeta.engine.compiled.nodes_half import CompiledHalf, is_compiled
from fedmeta.engine.layout import Layout
from fedmeta.engine.machine import few_threads, one_thread
from fedmeta.engine.mapping.cuda import CudaMapping
from fedmeta.engine.mapping.loop import LoopMapping
from fedmeta.engine.mapping.threads import ThreadMapping
from fedmeta.engine.memory import halved, out_of_memory
from fedmeta.engine.node_table import NodeTable
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.recording import Recorder
from fedmeta.engine.repeat_axis import RepeatAxis
from fedmeta.engine.round import NodesHalf, RoundResult, platform_half
from fedmeta.engine.round_metrics import RoundMetrics
from fedmeta.engine.stacked_priors import Tensors, prior_tensors, with_prior_tensors
from fedmeta.engine.states import as_kernels_like
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

_log = logging.getLogger("fedmeta")

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
        secret: what noise is drawn from; tests alone know it.
    """

    def __init__(
        self,
        algorithm: Algorithm | Sequence[Algorithm],
        cohort: Cohort | Sequence[Cohort],
        layout: Layout,
        participation: Participation = Participation(),
        ranks: Ranks = Ranks(),
        uplink: Uplink = Uplink(),
        secret: SecretRandom | None = None,
    ) -> None:
        own = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
        cohorts = [cohort] if isinstance(cohort, Cohort) else list(cohort)
        self._axis = RepeatAxis(several=not isinstance(cohort, Cohort))
        _check_repeats(cohorts, self._axis, layout.execution)
        self._algorithm, self._execution = own[0], layout.execution
        self._participation, self._ranks, self._uplink = participation, ranks, uplink
        self.chunk = layout.execution.chunk or 1
        self.table = NodeTable(own[0], cohorts, layout.execution, ranks, self._axis)
        self.fleet = Fleet(self.table.penalty, len(cohorts[0].federation.sources))
        priors = [prior_tensors(each, self.table.standing.weight) for each in own]
        joined = self._axis.join(priors * len(cohorts) if len(priors) == 1 else priors)
        lead = self._axis.nodes
        self._prior: Tensors = map_leaves(lambda leaf: as_kernels_like(leaf, lead), joined)
        self._told = self._prior if isinstance(own[0], HeldAtNodes) else {}
        self._draws = randomness.fold(randomness.key(cohorts[0].seed), Purpose.PARTICIPATION)
        self._secret = secret or SecretRandom()
        half = NodesHalf(own[0], layout.objective, uplink)
        self._nodes_half = self._axis.lift(half.of_chunk, (0, 0, 0, 0, None, 0))
        self._platform_half = self._axis.lift(self._step_of_platform)
        recorder = Recorder(self._nodes_half, scripted=True)
        self._sum: Recorder | CompiledHalf = recorder
        compiled = layout.execution.derivatives == "compiled"
        if compiled and is_compiled(own[0], layout.objective, uplink):
            self._sum = CompiledHalf(own[0], layout.objective, self._axis)
        self._platform = Recorder(self._platform_half, scripted=True)
        self._whole = Recorder(self._whole_round)
        self._on_gpu = layout.execution.torch_device.type == "cuda"
        self._single = layout.execution.path == "loop"
        self.mapping: LoopMapping | CudaMapping | ThreadMapping
        if self._single:
            self.mapping = LoopMapping(half.of_single)
        elif self._on_gpu:
            self.mapping = CudaMapping(recorder)
        else:
            self.mapping = ThreadMapping(self._sum, layout.execution.workers)
        alone = ranks.size == 1 and uplink.privacy.dp != "central"  # whose noise comes between
        self._can_be_one_piece = self._on_gpu and not self._single and alone
        self._bytes: dict[str, float] = {}  # per node and round; the same in every round
        self._notes: list[str] = []

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

        theta = {name: as_kernels_like(leaf, self._axis.nodes) for name, leaf in theta.items()}
        state = PlatformState(*self._axis.lift(one_platform)(theta, self.fleet.penalty))
        # Tensors of its own, whatever the algorithm made of θ.
        state = PlatformState(*map_leaves(torch.clone, (state.theta, dict(state.memory))))
        states: NodeState = {}
        shared = self._algorithm.broadcast(state)
        self.table.begin(0)
        for rows in torch.split(torch.arange(len(self.table.mine)), self.chunk):
            standing = self.table.pick(rows, self.table.standing)
            some = self._axis.lift(some_nodes)(theta, shared, standing)
            states = states or self.table.allocated(self.table.pick(torch.arange(1), some))
            self.table.write(states, rows, some)
        return state, states

    def round(self, state: PlatformState, nodes: NodeState, number: int) -> RoundResult:
        """One round; `nodes` is updated in place where a node was counted.

        When memory runs out the chunk shrinks and the round goes on; see `notes`.
        """
        counted = self._participation.counted(self.fleet.nodes, number, self._draws)
        moment = self._begin(number)
        weight = self.table.weight_of(counted)
        step = None
        if self._can_be_one_piece and len(counted) == self.fleet.nodes <= self.chunk:
            step = self._in_one_piece(state, nodes, moment, weight)
        if step is None:
            shared = self._algorithm.broadcast(state)
            with self._apart():
                total = self._summed(shared, nodes, self.table.here(counted), moment)
            total = self._released(self._of_all_ranks(total, shared, nodes, counted, moment))
            self.table.settle()  # states are in their place when the numbers are
            before = state.theta, dict(state.memory)
            with few_threads(self._axis.one(state.theta)):
                further = (total, self.fleet.penalty, weight, self._prior)
                step = (total, *self._platform(*before, *further))
        total, theta, memory, metrics = step
        if self._on_gpu:  # a recording's results are overwritten by the next
            theta, memory = cloned((theta, memory))
        if not self._bytes and len(counted) > 0:
            self._bytes = self._traffic(self._algorithm.broadcast(state), total)
        logged = RoundMetrics.sent(metrics, {"counted": len(counted), **self._bytes})
        return RoundResult(PlatformState(theta, memory), nodes, logged)

    def contributed(self, shared: Tree, nodes: NodeState, number: int) -> Contribution:
        """The nodes' half of a round alone: Σ contributions of all nodes here.

        Args:
            shared: what the platform sent, see `Algorithm.broadcast`.
            nodes: updated in place.
            number: of the round.
        """
        everyone, moment = torch.arange(len(self.table.mine)), self._begin(number)
        with self._apart():
            total = self._summed(shared, nodes, everyone, moment)
        assert total is not None, "there are nodes"
        return _named(total, shared)

    def notes(self) -> list[str]:
        """What happened since the last look that people should know of."""
        notes, self._notes = self._notes, []
        return notes

    def _apart(self) -> AbstractContextManager[None]:
        """Every thread has a core of its own where chunks are computed side by side; else nothing.

        Also this one, which copies and adds up: to share that out takes longer than to do it.
        """
        return one_thread() if isinstance(self.mapping, ThreadMapping) else nullcontext()

    def _begin(self, number: int) -> Tensor:
        """Give nodes their keys of a round; its number as a tensor."""
        self.table.begin(number)
        return torch.full((), number, dtype=torch.int64, device=self._execution.torch_device)

    def _summed(
        self, shared: Tree, nodes: NodeState, positions: Tensor, moment: Tensor
    ) -> Contribution | None:
        """Σ contributions of the nodes at those positions, chunk by chunk in their order.

        The update may be one vector where the platform's step does not mind.
        """
        half, everyone = self._sum, len(positions) == len(self.table.mine)
        if isinstance(half, CompiledHalf) and everyone and not half.varies and self.table.resident:
            assert isinstance(self.mapping, ThreadMapping)
            given = self.table.arguments(positions, nodes, single=False, draws=False)
            found = half.of_everyone(shared, *given, self.chunk, self.mapping.together)
            as_it_is = self._algorithm.numberwise and self._ranks.size == 1
            return found if as_it_is else _named(found, shared)
        total: Contribution | None = None
        arguments = partial(self._arguments, shared, nodes, moment)
        while len(positions) > 0:
            done, chunks = 0, torch.split(positions, self.chunk)
            try:
                computed = self.mapping(arguments, chunks)
                for rows, (subtotal, updated) in zip(chunks, computed, strict=True):
                    if total is None:
                        total = map_leaves(torch.clone, subtotal)
                    else:
                        total = map_leaves(torch.add, total, subtotal)
                    self.table.put(nodes, rows, updated)
                    done += len(rows)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                self._shrink(error, min(self.chunk, len(positions) - done))
            positions = positions[done:]
        return total

    def _arguments(
        self, shared: Tree, nodes: NodeState, moment: Tensor, rows: Tensor
    ) -> tuple[Tree, NodeState, NodeData, Standing, Tensor, Tensors]:
        """Of the nodes' half, for some of the nodes."""
        states, data, standing = self.table.arguments(rows, nodes, single=self._single)
        states = self._uplink.with_noise(states, standing.weight.shape, shared, self._secret)
        return shared, states, data, standing, moment, self._told

    def _of_all_ranks(
        self,
        total: Contribution | None,
        shared: Tree,
        nodes: NodeState,
        counted: Tensor,
        moment: Tensor,
    ) -> Contribution:
        """The sum over all processes; `total` is that of this one, None: it counts no node."""
        if total is None and len(counted) > 0:  # other ranks have nodes: a sum of none, like theirs
            arguments = self._arguments(shared, nodes, moment, torch.arange(1))
            some, _ = self.mapping.function(*arguments)
            total = map_leaves(torch.zeros_like, some)
        if total is None:  # every upload was lost
            none = torch.zeros_like(self.fleet.penalty)
            return Contribution(tree.zeros_like(shared), none, {})
        summed: Contribution = self._ranks.sum(total)
        return summed

    def _released(self, total: Contribution) -> Contribution:
        """The sum as the platform may look at it: with the noise of the leading rank."""
        if self._uplink.privacy.dp != "central":
            return total
        expected = self._participation.fraction * self.fleet.penalty
        released = self._uplink.released(total, self.table.weight.max(), expected, self._secret)
        agreed: Contribution = self._ranks.agree(released)
        return agreed

    def _step_of_platform(
        self,
        theta: Tree,
        memory: dict[str, Tree],
        total: Contribution,
        penalty: Tensor,
        weight: Tensor,
        prior: Tensors,
    ) -> tuple[Tree, Mapping[str, Tree], Metrics]:
        """The platform's half as a function of tensors alone."""
        before, fleet = PlatformState(theta, memory), Fleet(penalty, self.fleet.nodes)
        algorithm = with_prior_tensors(self._algorithm, prior)
        if not self._algorithm.numberwise or weight.is_cuda:  # GPUs take all leaves at once anyway
            after, metrics = platform_half(algorithm, before, total, fleet, weight)
            return after.theta, after.memory, metrics
        vectors = {slot: tree.as_vector(leaves) for slot, leaves in memory.items()}
        before = PlatformState(tree.as_vector(theta), vectors)
        total = total._replace(update=tree.as_vector(total.update))
        after, metrics = platform_half(algorithm, before, total, fleet, weight)
        held = {slot: tree.from_vector(leaf, theta) for slot, leaf in after.memory.items()}
        return tree.from_vector(after.theta, theta), held, metrics

    def _in_one_piece(
        self, state: PlatformState, nodes: NodeState, moment: Tensor, weight: Tensor
    ) -> _Step | None:
        """The whole round as one recording, when all nodes are computed at once; None: no room."""
        rows = torch.arange(len(self.table.mine))
        try:
            inputs = self.table.arguments(rows, nodes, single=False)
            if self._uplink.privacy.on:
                shared = self._algorithm.broadcast(state)
                inputs = self._arguments(shared, nodes, moment, rows)[1:4]
            further = (moment, self.fleet.penalty, weight, self._prior)
            step, updated = self._whole(state.theta, dict(state.memory), *inputs, *further)
        except torch.OutOfMemoryError as error:
            self._shrink(error, len(rows))
            return None
        self.table.put(nodes, rows, updated)
        self.table.settle()
        whole: _Step = step
        return whole

    def _whole_round(
        self,
        theta: Tree,
        memory: dict[str, Tree],
        states: NodeState,
        data: NodeData,
        standing: Standing,
        moment: Tensor,
        penalty: Tensor,
        weight: Tensor,
        prior: Tensors,
    ) -> tuple[_Step, NodeState]:
        """Both halves of a round for all nodes."""
        shared = self._algorithm.broadcast(PlatformState(theta, memory))
        told = prior if isinstance(self._algorithm, HeldAtNodes) else {}
        total, after = self._nodes_half(shared, states, data, standing, moment, told)
        return (total, *self._platform_half(theta, memory, total, penalty, weight, prior)), after

    def _shrink(self, error: BaseException, nodes: int) -> None:
        """Fewer at once than the `nodes` that were too many."""
        for recorder in (self._sum, self._whole):
            recorder.forget()  # first: their memory can be given back then
        self.chunk = halved(nodes, error, self._execution.torch_device)
        note = (
            f"memory ran out: from here on {self.chunk} nodes are computed at once, and the last "
            "bits may differ from those of an undisturbed run"
        )
        _log.warning(note)
        self._notes.append(note)

    def _traffic(self, shared: Tree, total: Contribution) -> dict[str, float]:
        """Bytes of the messages of one node."""
        shared, total = self._axis.one((shared, _named(total, shared)))
        scalars = {"weight": total.weight, **total.metrics}
        return {
            "bytes_down": payload_bytes(shared),
            "bytes_up": self._uplink.bytes_up(total.update, scalars),
        }


def _named(total: Contribution, like: Tree) -> Contribution:
    """With an update by name, also where it is one vector."""
    if "" not in total.update:
        return total
    return total._replace(update=tree.from_vector(total.update, like))


def _check_repeats(cohorts: Sequence[Cohort], axis: RepeatAxis, execution: Execution) -> None:
    """Refuse cohorts that cannot be computed side by side."""
    if axis.several and execution.path == "loop":
        raise SettingError(
            "nodes that are computed one by one have no repeats side by side",
            "train the repeats one after the other",
        )
    count = len(cohorts[0].federation.sources)
    if any(len(one.federation.sources) != count for one in cohorts):
        raise DataError(
            "the repeats have different numbers of source nodes", "train them one by one"
        )
