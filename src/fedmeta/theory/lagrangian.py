"""The augmented Lagrangian of a round, and its residuals.

𝓛(θ, θ_i, y_i) = Σ [w_i F_i(θ_i) + ⟨y_i, θ_i − θ⟩ + ρ_i/2 ‖θ_i − θ‖²] + λD_h(θ, θ_p)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.tree import Tree
from fedmeta.theory.problem import Problem, broadcast, squared_norms


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Where the nodes stood in round t, before the platform's step.

    Args:
        theta: θᵗ that the nodes were sent.
        local: θ_iᵗ, with a node axis.
        dual: y_iᵗ, with a node axis.
    """

    theta: Tree
    local: Tree
    dual: Tree

    @property
    def gap(self) -> Tree:
        """θ_i − θ of every node."""
        return {name: leaf - self.theta[name] for name, leaf in self.local.items()}


def snapshot(theta: Tree, before: Tree, after: Tree, penalties: Tensor) -> Snapshot:
    """A round from its duals: θ_i = θ + (y_iᵗ − y_i^{t−1})/ρ_i, for any number of local steps.

    Args:
        theta: θᵗ, what the nodes were sent.
        before: y_i^{t−1}, with a node axis.
        after: y_iᵗ, likewise.
        penalties: ρ_i, (I,).
    """
    local = {
        name: leaf + (after[name] - before[name]) / broadcast(penalties, after[name])
        for name, leaf in theta.items()
    }
    return Snapshot(theta, local, {name: after[name].clone() for name in theta})


def augmented_lagrangian(problem: Problem, at: Snapshot, penalties: Tensor) -> float:
    """𝓛(θ, θ_i, y_i), λD_h included.

    Args:
        problem: weights, data and prior.
        at: the round.
        penalties: ρ_i, (I,).
    """
    gap = at.gap
    products = [(at.dual[name] * leaf).flatten(1).sum(1) for name, leaf in gap.items()]
    inner = torch.stack(products).sum(0)
    value = problem.weights * problem.node_values(at.local) + inner
    total = (value + penalties / 2 * squared_norms(gap)).sum()
    return float(total if problem.prior is None else total + problem.prior.value(at.theta))


def primal_residual(at: Snapshot) -> float:
    """(Σ‖θ_i − θ‖²)^½."""
    return float(squared_norms(at.gap).sum().sqrt())


def dual_residual(problem: Problem, at: Snapshot, penalties: Tensor) -> float:
    """‖∇_θ𝓛‖ = ‖λ∇D_h(θ) − Σv_i‖ with v_i = y_i + ρ_i(θ_i − θ)."""
    total = {
        name: (at.dual[name] + broadcast(penalties, leaf) * leaf).sum(0)
        for name, leaf in at.gap.items()
    }
    if problem.prior is not None:
        total = tree.subtract(total, problem.prior.gradient(at.theta))
    return float(tree.squared_norm(total).sqrt())


class Moves(NamedTuple):
    """How far everyone went from one round to the next.

    Args:
        nodes: ‖Δθ_i‖² of every source.
        platform: ‖Δθ‖².
    """

    nodes: tuple[float, ...]
    platform: float


def moves(before: Snapshot, after: Snapshot) -> Moves:
    """The moves between two rounds."""
    nodes = squared_norms(tree.subtract(after.local, before.local)).tolist()
    step = tree.squared_norm(tree.subtract(after.theta, before.theta))
    return Moves(tuple(nodes), float(step))
