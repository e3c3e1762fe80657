"""What algorithms that descend the meta-objective share: how they adapt and differentiate."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedmeta.algorithms.step_learner import StepLearner
from fedmeta.core.errors import require
from fedmeta.core.meta_gradient import Curvature, InverseSchedule, MetaGradient, Schedule
from fedmeta.core.objective import Adaptation


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

    def gradients(self, support: int, query: int) -> float:
        """Mini-batches of the inner adaptation count by their samples."""
        size = self.inner.batch_size
        return super().gradients(support if size is None else min(size, support), query)
