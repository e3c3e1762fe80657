"""What algorithms share that learn the sizes of the inner steps beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    PlatformState,
    average_step,
)
from fedmeta.core import step_sizes
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree


class StepLearner(Algorithm):
    """An algorithm with an inner adaptation whose step sizes s may be learned.

    The platform keeps θ and, in its memory, s. Between nodes and platform there is one joint tree
    {θ, s}; where nothing is learned it is θ itself.
    """

    inner: Adaptation

    def started(self, theta: Tree) -> Tree:
        """The joint tree before the first round: θ and s = 0."""
        return {**theta, **step_sizes.start(self.inner, theta)}

    def joined(self, state: PlatformState) -> Tree:
        """θ and s as one tree."""
        return {**state.theta, **state.memory.get(step_sizes.MEMORY, {})}

    def parted(self, joint: Tree, memory: Mapping[str, Tree]) -> PlatformState:
        """The platform's state with θ and s of a joint tree, and further memory."""
        theta, steps = step_sizes.split(joint)
        return PlatformState(theta, {**memory, step_sizes.MEMORY: steps} if steps else memory)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ and s = 0."""
        return self.parted(self.started(theta), {})

    def broadcast(self, state: PlatformState) -> Tree:
        """θ and s."""
        return self.joined(state)

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """The average of what nodes made of θ and s."""
        return self.averaged(state, total, 1.0)

    def averaged(
        self, state: PlatformState, total: Contribution, length: float
    ) -> tuple[PlatformState, Metrics]:
        """`average_step` on θ and s."""
        joint = PlatformState(self.joined(state), state.memory)
        after, metrics = average_step(joint, total, length)
        return self.parted(after.theta, after.memory), metrics

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target adapts by the inner adaptation, with the step sizes learned so far."""
        steps = state.memory.get(step_sizes.MEMORY)
        if not steps:
            return self.inner
        return replace(self.inner, factors=step_sizes.factors(self.inner, steps))
