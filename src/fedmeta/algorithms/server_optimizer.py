"""The platform's own optimiser on a summed gradient: gradient descent or Adam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fedmeta.algorithms.algorithm import Contribution, Metrics, PlatformState, mean_update
from fedmeta.core import tree
from fedmeta.core.errors import require_choice, require_positive
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class ServerOptimizer:
    """θ⁺ = θ − β·g, or Adam's step with the usual moments.

    Adam: m = b₁m + (1−b₁)g, s = b₂s + (1−b₂)g², θ⁺ = θ − β (m/(1−b₁ᵗ)) / (√(s/(1−b₂ᵗ)) + ε)
    with b₁ = 0.9, b₂ = 0.999, ε = 1e-8.

    Args:
        kind: "sgd" or "adam".
        step_size: β > 0.

    Reference: Kingma, Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
    """

    kind: Literal["sgd", "adam"]
    step_size: float

    def __post_init__(self) -> None:
        require_choice("optimizer", self.kind, ("sgd", "adam"))
        require_positive("step_size", self.step_size)

    def platform_state(self, theta: Tree) -> PlatformState:
        """θ and, for Adam, zero moments."""
        if self.kind == "sgd":
            return PlatformState(theta)
        some = next(iter(theta.values()))
        memory = {
            "moment1": tree.zeros_like(theta),
            "moment2": tree.zeros_like(theta),
            "updates": {"count": torch.zeros((), dtype=some.dtype, device=some.device)},
        }
        return PlatformState(theta, memory)

    def platform_step(
        self, state: PlatformState, total: Contribution
    ) -> tuple[PlatformState, Metrics]:
        """A step down the mean of the nodes' gradients."""
        gradient = mean_update(total)
        theta, memory = self.step(state.theta, gradient, state.memory)
        norm = tree.squared_norm(gradient).sqrt()
        arrived = total.weight > 0  # else moments, too, stay as they are

        def chosen(new: Tree, old: Tree) -> Tree:
            return {name: torch.where(arrived, leaf, old[name]) for name, leaf in new.items()}

        memory = {slot: chosen(leaves, state.memory[slot]) for slot, leaves in memory.items()}
        return PlatformState(chosen(theta, state.theta), memory), {"gradient_norm": norm}

    def step(
        self, theta: Tree, gradient: Tree, memory: Mapping[str, Tree]
    ) -> tuple[Tree, dict[str, Tree]]:
        """θ⁺ and the new moments."""
        if self.kind == "sgd":
            return tree.descend(theta, self.step_size, gradient), {}
        count = memory["updates"]["count"] + 1
        first = tree.combine(0.9, memory["moment1"], 0.1, gradient)
        second = {
            name: 0.999 * memory["moment2"][name] + 0.001 * leaf.square()
            for name, leaf in gradient.items()
        }
        updated = {
            name: leaf
            - self.step_size
            * (first[name] / (1 - 0.9**count))
            / ((second[name] / (1 - 0.999**count)).sqrt() + 1e-8)
            for name, leaf in theta.items()
        }
        return updated, {"moment1": first, "moment2": second, "updates": {"count": count}}
