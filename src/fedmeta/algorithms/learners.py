"""What algorithms share: learned sizes of inner steps, with meta-gradients or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    PlatformState,
    average_step,
)
from fedmeta.core import randomness, step_sizes
from fedmeta.core.errors import require, require_positive
from fedmeta.core.meta_gradient import (
    Curvature,
    InverseSchedule,
    MetaGradient,
    Schedule,
    meta_gradient,
)
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


class StepLearner(Algorithm):
    """An algorithm with an inner adaptation whose step sizes s may be learned.

    The platform keeps θ and, in its memory, s. Between nodes and platform there is one joint tree
    {θ, s}; where nothing is learned it is θ itself.
    """

    inner: Adaptation
    local_steps: int = 1  # of a node in one round
    batch_size: int | None = None  # of a local step; None takes all of a node's samples
    mixing: float = 1.0  # length of the platform's step towards the average

    def started(self, theta: Tree) -> Tree:
        """The joint tree before the first round: θ and s = 0."""
        return {**theta, **step_sizes.start(self.inner, theta)}

    def joined(self, state: PlatformState) -> Tree:
        """θ and s as one tree."""
        return {**state.theta, **state.memory.get(step_sizes.MEMORY, {})}

    def separated(self, joint: Tree, memory: Mapping[str, Tree]) -> PlatformState:
        """The platform's state with θ and s of a joint tree, and further memory."""
        theta, steps = step_sizes.split(joint)
        return PlatformState(theta, {**memory, step_sizes.MEMORY: steps} if steps else memory)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and s = 0."""
        return self.separated(self.started(theta), {})

    def broadcast(self, state: PlatformState) -> Tree:
        """θ and s."""
        return self.joined(state)

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """A step towards the average of what nodes made of θ and s."""
        joint = PlatformState(self.joined(state), state.memory)
        after, metrics = average_step(joint, total, self.mixing)
        return self.separated(after.theta, after.memory), metrics

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target adapts by the inner adaptation, with the step sizes learned so far."""
        steps = state.memory.get(step_sizes.MEMORY)
        if not steps:
            return self.inner
        return replace(self.inner, factors=step_sizes.factors(self.inner, steps))


@dataclass(frozen=True)
class MetaLearner(StepLearner):
    """An algorithm whose nodes compute meta-gradients G_i(θ) = ∇_θ L_i(φ_i(θ), D^q_i).

    Where step sizes s are learned, θ stands for the joint tree {θ, s} in everything nodes and
    platform do: G_i has a part for s, and duals, averages and moments cover it.

    Args:
        inner: α, steps and scope of the inner adaptation φ_i, and whether its step sizes are
            learned; a target adapts by it as well.
        curvature: how ∇²L·r is computed: "exact", "finite-difference" or "none".
        difference: δ_t of the finite difference.
        resplit: divide the samples of a node anew into support and query set before every step.
    """

    inner: Adaptation = Adaptation()
    _: KW_ONLY
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()
    resplit: bool = False

    def __post_init__(self) -> None:
        fits = isinstance(self.inner, Adaptation)
        require(fits, "inner", self.inner, "an Adaptation, such as Adaptation(step_size=0.1)")
        MetaGradient(self.inner, self.curvature, self.difference)  # checks the curvature

    @property
    def meta_gradient(self) -> MetaGradient:
        """How G is computed."""
        return MetaGradient(self.inner, self.curvature, self.difference, self.resplit)

    @property
    def passes(self) -> Passes:
        """A meta-gradient per local step."""
        one = self.meta_gradient.passes
        return Passes(self.local_steps * one.support, self.local_steps * one.query)

    def gradients(self, support: int, query: int) -> float:
        """Mini-batches of the inner adaptation count by their samples."""
        size = self.inner.batch_size
        return super().gradients(support if size is None else min(size, support), query)


@dataclass(frozen=True)
class Baseline(StepLearner):
    """An algorithm that trains θ without looking at the adaptation of targets.

    Where `inner.learned` asks for step sizes, every node adapts the θ it received to its support
    set as a target would, and from the gradients g_j on the way and r on its query set finds the
    slope of the loss after adaptation, without curvature products:

    Node:      G_s = −c Σ_j α f ⊙ g_j ⊙ r,   f = exp(c·s)
    Platform:  s⁺  = s − β_s Σ w_i G_s,i / Σ w_i

    Args:
        step_rate: β_s > 0; without effect where no step sizes are learned.
    """

    _: KW_ONLY
    step_rate: float = 0.1

    def __post_init__(self) -> None:
        require_positive("step_rate", self.step_rate)

    @property
    def passes(self) -> Passes:
        """One pass over all samples per local step, and what learning step sizes takes.

        That is one adaptation and one query gradient.
        """
        learned = self.inner.learned != "none"
        return Passes(self.local_steps + learned * self.inner.steps, self.local_steps + learned)

    def gradients(self, support: int, query: int) -> float:
        """Mini-batches count by their samples."""
        batch, inner_batch = (
            held if size is None else min(size, held)
            for size, held in ((self.batch_size, support + query), (self.inner.batch_size, support))
        )
        learning = self.inner.steps * inner_batch + query if self.inner.learned != "none" else 0
        return self.local_steps * batch + learning

    def step_gradient(
        self, objective: Objective, joint: Tree, data: NodeData, facts: Facts
    ) -> Tree:
        """G_s at the θ and s of a joint tree."""
        rule = MetaGradient(self.inner, "none")
        draw = facts._replace(key=randomness.fold(facts.key, Purpose.STEP_SIZES))
        gradient, _ = meta_gradient(objective, rule, joint, data, draw)
        return step_sizes.split(gradient)[1]
