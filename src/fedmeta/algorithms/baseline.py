"""What algorithms without meta-gradients share: they may learn inner step sizes as an extra."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedmeta.algorithms.step_learner import StepLearner
from fedmeta.core import randomness, step_sizes
from fedmeta.core.errors import require_positive
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Facts, Objective, Passes
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


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
    def learning_passes(self) -> Passes:
        """What learning step sizes costs a node per round: one adaptation, one query gradient."""
        return Passes(0, 0) if self.inner.learned == "none" else Passes(self.inner.steps, 1)

    def learning_gradients(self, support: int, query: int) -> float:
        """The same in gradients of single samples; mini-batches count by their samples."""
        size = self.inner.batch_size
        batch = support if size is None else min(size, support)
        return self.learning_passes.support * batch + self.learning_passes.query * query

    def step_gradient(
        self, objective: Objective, joint: Tree, data: NodeData, facts: Facts
    ) -> Tree:
        """G_s at the θ and s of a joint tree."""
        rule = MetaGradient(self.inner, "none")
        draw = facts._replace(key=randomness.fold(facts.key, Purpose.STEP_SIZES))
        gradient, _ = meta_gradient(objective, rule, joint, data, draw)
        return step_sizes.split(gradient)[1]
