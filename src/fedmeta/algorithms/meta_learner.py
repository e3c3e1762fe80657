"""What algorithms that descend the meta-objective share: how they adapt and differentiate."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedmeta.algorithms.base import Algorithm, PlatformState
from fedmeta.errors import require
from fedmeta.objective import Adaptation, Curvature, InverseSchedule, MetaGradient, Schedule


@dataclass(frozen=True)
class MetaLearner(Algorithm):
    """An algorithm whose nodes compute meta-gradients G_i(θ) = ∇_θ L_i(φ_i(θ), D^q_i).

    Args:
        inner: α, steps and scope of the inner adaptation φ_i; a target adapts by it as well.
        curvature: how ∇²L·r is computed: "exact", "finite-difference" or "none".
        difference: δ_t of the finite difference.
    """

    inner: Adaptation = Adaptation()
    _: KW_ONLY
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()

    def __post_init__(self) -> None:
        fits = isinstance(self.inner, Adaptation)
        require(fits, "inner", self.inner, "an Adaptation, such as Adaptation(step_size=0.1)")
        MetaGradient(self.inner, self.curvature, self.difference)  # checks the curvature

    @property
    def meta_gradient(self) -> MetaGradient:
        """How G is computed."""
        return MetaGradient(self.inner, self.curvature, self.difference)

    def gradients(self, support: int, query: int) -> float:
        """Mini-batches of the inner adaptation count by their samples."""
        size = self.inner.batch_size
        return super().gradients(support if size is None else min(size, support), query)

    def adaptation(self, state: PlatformState) -> Adaptation:
        """A target adapts as the nodes did."""
        return self.inner
