"""The nodes' half of a round in compiled code, where all it takes is one meta-gradient a node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    LinearStep,
    NodeState,
    linear_step_of,
)
from fedmeta.core import randomness, tree
from fedmeta.core.meta_gradient import is_one_plain_step
from fedmeta.core.objective import Objective
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, redivided
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.engine.chain.chain import Chain
from fedmeta.engine.cohort import Standing
from fedmeta.engine.compiled.kernel import Kernel, Together
from fedmeta.engine.recording import Ready, Recorder
from fedmeta.engine.repeat_axis import RepeatAxis
from fedmeta.engine.stacked_priors import Tensors
from fedmeta.uplink.uplink import Uplink

_SUMS, _LEAST_CHUNKS = 2**24, 16  # numbers that the sums of all chunks take; as many are made


def is_compiled(algorithm: Algorithm, objective: Objective, uplink: Uplink = Uplink()) -> bool:
    """Whether a round of these is the compiled code's affair.

    The network is a chain; a node's step is linear in one meta-gradient of the kind that is had in
    closed form; and nobody looks at a single contribution on its way to the sum.
    """
    one = torch.ones(1)
    step = linear_step_of(algorithm, one, one)
    if not isinstance(objective.closed_form, Chain) or step is None or not uplink.unmodified:
        return False
    inner = step.rule.adaptation
    return is_one_plain_step(step.rule) and inner.learned == "none" and inner.factors is None


class CompiledHalf:
    """Σ contributions of some nodes, and their states, which `of_everyone` overwrites.

    The arguments of a call are those of `NodesHalf.of_chunk`, with an axis of repeats in front
    where there are several.

    Args:
        algorithm: see `is_compiled`.
        objective: likewise.
        axis: whether there are several cohorts.
    """

    def __init__(self, algorithm: Algorithm, objective: Objective, axis: RepeatAxis) -> None:
        self._algorithm, self._axis, one = algorithm, axis, torch.ones(1)
        step = linear_step_of(algorithm, one, one)
        assert step is not None
        assert isinstance(objective.closed_form, Chain)
        rule = step.rule
        self._kernel = Kernel(objective.closed_form, rule)
        self.varies = rule.resplit != "none" or objective.renames > 0 or objective.turns > 0
        """Whether samples are divided or named anew in every round."""

        def varied(data: NodeData, key: Tensor) -> NodeData:
            key = key if step.stream is None else randomness.fold(key, step.stream)
            data = redivided(data, rule.resplit, randomness.fold(key, Purpose.RESPLIT))
            return objective.varied(data, key)

        self._varied = Recorder(axis.lift(torch.func.vmap(varied)), scripted=True)
        self._known: tuple[Standing, LinearStep, Tensor, int] | None = None

    def __call__(self, *arguments: Any) -> tuple[Contribution, NodeState]:
        """Σ contributions and states."""
        result: tuple[Contribution, NodeState] = self.ready(*arguments).call(*arguments)
        return result

    def ready(self, *arguments: Any) -> Ready:
        """How to call it now, see `Recorder.ready`."""
        if not self.varies:
            return Ready(self._summed, concurrent=True)
        vary = self._varied.ready(arguments[2], arguments[3].key)

        def call(
            shared: Tree, states: NodeState, data: NodeData, standing: Standing, *_: Any
        ) -> tuple[Contribution, NodeState]:
            return self._summed(shared, states, vary.call(data, standing.key), standing)

        return Ready(call, vary.concurrent)

    def forget(self) -> None:
        """Drop what was recorded."""
        self._varied.forget()

    def of_everyone(
        self,
        shared: Tree,
        states: NodeState,
        data: NodeData,
        standing: Standing,
        chunk: int,
        together: Together,
    ) -> Contribution:
        """Σ contributions of all nodes, chunk by chunk, of one cohort whose samples stay.

        The update is one vector, see `tree.from_vector`.
        """
        if self._known is None or self._known[0].weight is not standing.weight:
            most = max(_LEAST_CHUNKS, _SUMS // tree.size(shared))
            self._known = (standing, *self._step(standing), -(-len(standing.weight) // most))
        _, step, factors, least = self._known
        chunk = max(chunk, least)
        own = {} if step.slot is None else states[step.slot]
        return _told(step, self._kernel(shared, data, own, factors, chunk, together))

    def _summed(
        self,
        shared: Tree,
        states: NodeState,
        data: NodeData,
        standing: Standing,
        _moment: Tensor | None = None,
        _prior: Tensors | None = None,
    ) -> tuple[Contribution, NodeState]:
        step, factors = self._step(standing)

        def one(theta: Tree, own: Tree, data: NodeData, factors: Tensor) -> Contribution:
            found = _told(step, self._kernel(theta, data, own, factors, len(factors)))
            return found._replace(update=tree.from_vector(found.update, theta))

        own: Tree = {}
        if step.slot is not None:  # not in place: a chunk may be computed again
            own = map_leaves(torch.clone, states[step.slot])
            states = {**states, step.slot: own}
        if not self._axis.several:
            return one(shared, own, data, factors), states
        found = []
        for repeat in range(len(factors)):
            mine = map_leaves(lambda leaf, at=repeat: leaf[at], (shared, own, data, factors))
            found.append(one(*mine))
        return self._axis.join(found), states

    def _step(self, standing: Standing) -> tuple[LinearStep, Tensor]:
        """What the algorithm says of these nodes, and that as a table."""
        step = linear_step_of(self._algorithm, standing.weight, standing.penalty)
        assert step is not None
        moved = torch.zeros_like(step.loss) if step.moved is None else step.moved
        numbers = (step.keep, step.gain, step.share, step.extra, step.weight, step.loss, moved)
        return step, torch.stack(numbers, -1)


def _told(step: LinearStep, found: tuple[Tree, Any]) -> Contribution:
    update, (weight, loss, moved) = found
    metrics = {"meta_loss": loss}
    if step.moved is not None:
        metrics["primal_squared"] = moved
    return Contribution(update, weight, metrics)
