"""What algorithms share: learned sizes of inner steps, with meta-gradients or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

import torch

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    PlatformState,
    mean_update,
)
from fedmeta.algorithms.platform_optimizer import PlatformOptimizer
from fedmeta.core import randomness, step_sizes, tree
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
from fedmeta.core.sample_sets import NodeData, Resplit
from fedmeta.core.tree import Tree


class StepLearner(Algorithm):
    """An algorithm whose platform takes a `PlatformOptimizer` and whose inner steps may be learned.

    A subclass writes `node_step`, with a contribution that is w_i times a displacement or a
    negative gradient; the platform's step is the same for all. The platform keeps θ and, in its
    memory, step sizes s and what its optimiser remembers. Between nodes and platform there is one
    joint tree {θ, s}; where nothing is learned it is θ itself.
    """

    inner: Adaptation
    server: PlatformOptimizer | str = PlatformOptimizer()
    local_steps: int = 1  # of a node in one round
    batch_size: int | None = None  # of a local step; None takes all of a node's samples
    mixing: float = 1.0  # what the mean update is multiplied by

    def __post_init__(self) -> None:
        fits = isinstance(self.server, PlatformOptimizer | str)
        require(fits, "server", self.server, 'a name, such as "adam", or a PlatformOptimizer')
        object.__setattr__(self, "server", PlatformOptimizer.of(self.server))
        fits = isinstance(self.inner, Adaptation)
        require(fits, "inner", self.inner, "an Adaptation, such as Adaptation(step_size=0.1)")

    @property
    def optimizer(self) -> PlatformOptimizer:
        """The platform's step."""
        return PlatformOptimizer.of(self.server)

    @property
    def needs_losses(self) -> bool:
        """To find the length of the platform's steps."""
        return self.optimizer.needs_losses

    @property
    def gradients_per_update(self) -> float:
        """How many gradients a node's update is worth, about: ηE of E local steps of size η.

        A search for the platform's step length holds updates against losses, so it must know their
        unit. An update that is a gradient is worth one.
        """
        size: float = getattr(self, "step_size", 1.0)
        return size * self.local_steps * self.mixing

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
        """θ, s = 0 and what the optimiser remembers."""
        joint = self.started(theta)
        return self.separated(joint, self.optimizer.start(joint))

    def broadcast(self, state: PlatformState) -> Tree:
        """θ and s."""
        return self.joined(state)

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """The optimiser's step with the mean update; where no upload arrived all stays."""
        joint, update = self.joined(state), tree.scale(self.mixing, mean_update(total))
        worth = self.gradients_per_update
        if not self.needs_losses:
            after, memory, numbers = self.optimizer.step(
                joint, state.memory, update, None, total.weight
            )
            arrived = total.weight > 0  # else moments, too, stay as they are
            kept = {
                slot: {n: torch.where(arrived, x, state.memory[slot][n]) for n, x in leaves.items()}
                for slot, leaves in memory.items()
            }
            if memory:
                after = {n: torch.where(arrived, leaf, joint[n]) for n, leaf in after.items()}
            numbers["gradient_norm"] = numbers["gradient_norm"] / worth
            return self.separated(after, {**state.memory, **kept}), numbers
        name = next((each for each in ("meta_loss", "local_loss") if each in total.metrics), None)
        if name is None:
            return state, {}
        loss = total.metrics[name] / total.weight
        descent = tree.scale(1 / worth, update)
        after, memory, numbers = self.optimizer.step(
            joint, state.memory, descent, loss, total.weight
        )
        numbers[name] = numbers.pop("loss")
        return self.separated(after, {**state.memory, **memory}), numbers

    def model(self, state: PlatformState) -> Tree:
        """θ, or the average that the optimiser keeps."""
        return step_sizes.split(self.optimizer.model(state.theta, state.memory))[0]

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target adapts by the inner adaptation, with the step sizes that belong to `model`."""
        _, steps = step_sizes.split(self.optimizer.model(self.joined(state), state.memory))
        steps = steps or state.memory.get(step_sizes.MEMORY, {})  # which may not be averaged
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
        resplit: divide the samples of a node anew into support and query set before every step:
            "none", "random", or "classes", where every class stays in the support set.
        server: the platform's step: "plain", "momentum", "adam", "yogi", "orthogonal" or a
            `PlatformOptimizer`.
    """

    inner: Adaptation = Adaptation()
    _: KW_ONLY
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()
    resplit: Resplit = "none"
    server: PlatformOptimizer | str = PlatformOptimizer()

    def __post_init__(self) -> None:
        super().__post_init__()
        MetaGradient(self.inner, self.curvature, self.difference, self.resplit)  # checks them

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
        server: the platform's step: "plain", "momentum", "adam", "yogi", "orthogonal" or a
            `PlatformOptimizer`.
    """

    _: KW_ONLY
    step_rate: float = 0.1
    server: PlatformOptimizer | str = PlatformOptimizer()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("step_rate", self.step_rate)

    @property
    def local_passes(self) -> int:
        """Gradients of mini-batches (or of all samples) that training θ takes of a node."""
        return self.local_steps

    @property
    def passes(self) -> Passes:
        """One pass over all samples per local gradient, and what learning step sizes takes.

        That is one adaptation and one query gradient.
        """
        learned = self.inner.learned != "none"
        return Passes(self.local_passes + learned * self.inner.steps, self.local_passes + learned)

    def gradients(self, support: int, query: int) -> float:
        """Mini-batches count by their samples."""
        batch, inner_batch = (
            held if size is None else min(size, held)
            for size, held in ((self.batch_size, support + query), (self.inner.batch_size, support))
        )
        learning = self.inner.steps * inner_batch + query if self.inner.learned != "none" else 0
        return self.local_passes * batch + learning

    def step_gradient(
        self, objective: Objective, joint: Tree, data: NodeData, facts: Facts
    ) -> Tree:
        """G_s at the θ and s of a joint tree."""
        rule = MetaGradient(self.inner, "none")
        draw = facts._replace(key=randomness.fold(facts.key, Purpose.STEP_SIZES))
        gradient, _ = meta_gradient(objective, rule, joint, data, draw)
        return step_sizes.split(gradient)[1]
