"""The augmented Lagrangian along a run, its residuals, and by how much theory says it falls.

𝓛(θ, θ_i, y_i) = Σ [w_i F_i(θ_i) + ⟨y_i, θ_i − θ⟩ + ρ_i/2 ‖θ_i − θ‖²] + λD_h(θ, θ_p)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.tree import Tree
from fedmeta.theory.constants import Constants, check_positive, times
from fedmeta.theory.penalties import platform_coefficient
from fedmeta.theory.problem import Problem


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


def snapshot(theta: Tree, before: Tree, after: Tree, penalties: Tensor) -> Snapshot:
    """A round from its duals: θ_i = θ + (y_iᵗ − y_i^{t−1})/ρ_i, for any number of local steps.

    Args:
        theta: θᵗ, what the nodes were sent.
        before: y_i^{t−1}, with a node axis.
        after: y_iᵗ, likewise.
        penalties: ρ_i, (I,).
    """
    local = {
        name: leaf + (after[name] - before[name]) / _aligned(penalties, after[name])
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
    apart = _apart(at)
    inner = torch.stack(
        [(at.dual[name] * leaf).flatten(1).sum(1) for name, leaf in apart.items()]
    ).sum(0)
    value = problem.weights * problem.node_values(at.local) + inner
    total = (value + penalties / 2 * _squares(apart)).sum()
    return float(total if problem.prior is None else total + problem.prior.value(at.theta))


def primal_residual(at: Snapshot) -> float:
    """(Σ‖θ_i − θ‖²)^½."""
    return float(_squares(_apart(at)).sum().sqrt())


def dual_residual(problem: Problem, at: Snapshot, penalties: Tensor) -> float:
    """‖∇_θ𝓛‖ = ‖λ∇D_h(θ) − Σv_i‖ with v_i = y_i + ρ_i(θ_i − θ)."""
    apart = _apart(at)
    total = {
        name: (at.dual[name] + _aligned(penalties, leaf) * leaf).sum(0)
        for name, leaf in apart.items()
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
    nodes = _squares(tree.subtract(after.local, before.local)).tolist()
    step = tree.squared_norm(tree.subtract(after.theta, before.theta))
    return Moves(tuple(nodes), float(step))


@dataclass(frozen=True)
class Descent:
    """The coefficients of the descent of 𝓛 in one round, one entry per source.

    𝓛^{t+1} − 𝓛ᵗ ≤ −Σ (a_e‖Δθ_i‖² + a_p‖Δθ‖² − b_e‖Δθ_i‖ − b_p‖Δθ‖ − c)
    """

    a_e: tuple[float, ...]
    a_p: tuple[float, ...]
    b_e: tuple[float, ...]
    b_p: tuple[float, ...]
    c: tuple[float, ...]

    def bound(self, moved: Moves) -> float:
        """The right side, the largest change of 𝓛 from one round to the next: negative is a fall.

        Args:
            moved: between round t and round t + 1.
        """
        step, total = moved.platform, 0.0
        for i, square in enumerate(moved.nodes):
            total += self.a_e[i] * square - times(self.b_e[i], square**0.5)
            total += self.a_p[i] * step - times(self.b_p[i], step**0.5) - self.c[i]
        return -total


def descent(
    constants: Constants,
    weights: Sequence[float],
    penalties: Sequence[float],
    strength: float = 0.0,
    mu_r: float = 2.0,
    deltas: tuple[float, float] = (0.0, 0.0),
    printed: bool = False,
) -> Descent:
    """The coefficients of `Descent` for one round.

        a_e = ρ/2 − 4wν                         a_p = ρ/2 − 2w²ν²(4wν/ρ² + 1/ρ) − λμ_r/(2I)
        b_e = e·δ_{t+1}                         b_p = 2wν·e·δ_{t+1}/ρ             e = αwζβ²
        c   = 2(δ_t + δ_{t+1})²e²(4wν/ρ² + 1/ρ) + 2e²δ_{t+1}(δ_t + δ_{t+1})/ρ

    They hold with room to spare: the platform's exact minimisation of its linearised part lowers 𝓛
    by (ρ/2 − λμ_r/2I)‖Δθ‖² per node; a node's step by (ρ/2 − wν)‖Δθ_i‖², less (3wν/2)‖θ_i − θ‖²;
    the dual's step adds ‖Δy‖²/ρ; and ‖θ_i − θ‖ = ‖Δy‖/ρ with ‖Δy‖ ≤ wν‖Δθ‖ + (δ_t + δ_{t+1})e.

    Args:
        constants, weights, penalties, strength, mu_r, printed: see `penalties.inequalities`.
        deltas: δ_t and δ_{t+1} of the differences; (0, 0) with exact curvature, where b = c = 0.

    Reference: Yue et al., MobiHoc 2021, lemma of sufficient descent.
    """
    count, (now, then) = len(constants.nodes), deltas
    check_positive("weights", weights, count)
    check_positive("penalties", penalties, count)
    rows = []
    nodes = zip(constants.nodes, constants.nu(printed), weights, penalties, strict=True)
    for node, nu, w, rho in nodes:
        e = times(constants.step_size, w, node.hessian, node.gradient, node.gradient)
        s, both = w * nu, now + then
        a_p = platform_coefficient(rho, s, strength * mu_r / count)
        c = times(2, both, both, e, e, 4 * s / rho**2 + 1 / rho)
        c += times(2, e, e, then, both, 1 / rho)
        rows.append((rho / 2 - 4 * s, a_p, times(e, then), times(2, s, e, then, 1 / rho), c))
    return Descent(*zip(*rows, strict=True))


def _apart(at: Snapshot) -> Tree:
    """θ_i − θ of every node."""
    return {name: leaf - at.theta[name] for name, leaf in at.local.items()}


def _squares(a: Tree) -> Tensor:
    """‖a_i‖² of every node, (I,)."""
    return torch.stack([leaf.flatten(1).square().sum(1) for leaf in a.values()]).sum(0)


def _aligned(numbers: Tensor, leaf: Tensor) -> Tensor:
    """One number per node, in the shape that multiplies a leaf with a node axis."""
    return numbers.reshape(-1, *[1] * (leaf.ndim - 1))
