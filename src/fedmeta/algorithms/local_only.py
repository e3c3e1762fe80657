"""Local-only: the reference that learns nothing from others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import Algorithm, Contribution, NodeState, PlatformState
from fedmeta.core import tree
from fedmeta.core.errors import require_positive, require_whole
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """A target trains the initial model on its own support set; sources teach it nothing.

    Args:
        step_size: of the target's gradient steps, > 0.
        steps: how many it takes, ≥ 1.
    """

    name: ClassVar[str] = "local-only"

    step_size: float = 0.05
    steps: int = 100

    def __post_init__(self) -> None:
        require_positive("step_size", self.step_size)
        require_whole("steps", self.steps, 1)

    @property
    def passes(self) -> Passes:
        """Sources compute no gradient."""
        return Passes(0, 0)

    @property
    def inner(self) -> Adaptation:  # type: ignore[override]
        """Training from scratch, as an adaptation of many steps."""
        return Adaptation(self.step_size, self.steps)

    def adaptation(self, state: PlatformState) -> Adaptation:
        """The same."""
        return self.inner

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """Only the loss of the initial model, so that the log has one."""
        loss = objective.value(theta, union(data))
        metrics = {"local_loss": facts.weight * loss}
        return Contribution(tree.zeros_like(theta), facts.weight, metrics), node
