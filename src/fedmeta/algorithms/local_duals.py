"""Several local steps of ADMM whose size nobody has to choose.

With units per weight (ρ_i = w_i ρ̃, y_i = w_i ỹ_i) a node minimises, from θ and its dual ỹ⁻,

    F_i(θ_i) + ⟨ỹ⁻, θ_i − θ⟩ + ρ̃/2 ‖θ_i − θ‖²

by K gradient steps, and sends ỹ = ỹ⁻ + ρ̃(θ_i − θ), which is −G(θ_i) where they arrive; w_i ỹ is
summed, and the platform goes on as with K = 1.

**Why steps of 1/ρ diverge, and these do not.** A gradient step contracts if it is shorter than
2/(L + ρ̃), L the smoothness of F_i; the paper's 1/ρ̃ is, only where L < ρ̃. At the paper's ρ < 1,
which is ρ̃ = ρ/w, L is larger on all data we have. So the node measures L̂ by secants between its
own local steps, ‖G(θᵏ) − G(θᵏ⁻¹)‖ / ‖θᵏ − θᵏ⁻¹‖, and takes ρ̃ = L̂ and steps of 1/(ρ̃ + L̂): for
curvatures between 0 and L̂ every step at least halves what is left, between −L̂ and 0 it does no
harm. L̂ rises at once to the largest seen, and falls by a tenth per round. The first secant of a
node is from a step of a thousandth of ‖θ‖. A step that ends with a gradient of the local problem
that is not finite, or larger than at its start by more than ‖G(θ)‖, is not taken, and L̂ doubles.

**A dual that no longer fits is given up.** A node that was absent, or whose round the platform took
back, has a ỹ⁻ from another θ. So ỹ⁻ is used only while it is nearer to −G(θ) than 0 is; otherwise
the node begins anew with ỹ⁻ = −G(θ), where the local problem is solved already: it sends what it
would send with K = 1. That takes no message and no count of rounds, which would not know of rounds
that were taken back. (A-FedPD advances the duals of absent nodes by the mean of the others, for
which every node would have to be sent what it missed; FedADMM-InSa finds ρ_i from residuals, as is
done here from secants.)

References: Yue et al., MobiHoc 2021; Sun, Shen, Chen, Tao, A-FedPD, arXiv 2409.18915; Song, Wang,
Wang, Yuan, FedADMM-InSa, arXiv 2402.13989.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.tree import Tree

_PROBE = 1e-3  # length of the first step of all, as a share of ‖θ‖
_SEEN = 1e-5  # and of the shortest whose secant is more than rounding
_FADING = 0.9  # of L̂ from round to round


class LocalSolution(NamedTuple):
    """What K local steps came to.

    Args:
        dual: ỹ.
        smoothness: L̂.
        loss: F_i(θ).
        moved: θ_i − θ.
    """

    dual: Tree
    smoothness: Tensor
    loss: Tensor
    moved: Tree


def solved(
    gradient: Callable[[Tree], tuple[Tree, Tensor]],
    theta: Tree,
    dual: Tree,
    smoothness: Tensor,
    steps: int,
    remember: bool = True,
) -> LocalSolution:
    """K local steps from θ; runs under vmap.

    Args:
        gradient: G and F_i at a place, the same function in all steps of a round.
        theta: what the platform sent.
        dual: ỹ⁻.
        smoothness: L̂ so far, 0 at the start.
        steps: K ≥ 1, the number of gradients.
        remember: use ỹ⁻; otherwise 0 stands for it in every round.

    Example:
        >>> def bowl(x: Tree) -> tuple[Tree, Tensor]:
        ...     return {"x": 2 * x["x"]}, x["x"].square().sum()
        >>> zero = {"x": torch.zeros(1)}
        >>> found = solved(bowl, {"x": torch.ones(1)}, zero, torch.tensor(2.0), 9, remember=False)
        >>> found.dual["x"].round(decimals=2)  # of x² + (x − 1)², which is least at ½
        tensor([-1.])
    """
    slope, loss = gradient(theta)
    steepness, size = _norm(slope), _norm(theta)
    before = _start(slope, steepness, dual, remember)
    bound = _norm(tree.add(slope, before)) + steepness
    place, bend = theta, _FADING * smoothness
    seen = torch.zeros_like(bend, dtype=torch.bool)
    for _ in range(steps - 1):
        descent = _descent(slope, before, bend, place, theta)
        unknown = bend == 0
        probe = _PROBE * size / steepness.clamp(min=torch.finfo(size.dtype).tiny)
        move = {
            name: torch.where(unknown, -probe * slope[name], leaf)
            for name, leaf in tree.scale(_length(bend), descent).items()
        }
        tried = tree.add(place, move)
        further, _ = gradient(tried)
        length = _norm(move)
        visible = length > _SEEN * size
        secant = _norm(tree.subtract(further, slope)) / torch.where(visible, length, 1.0)
        secant = torch.where(visible & secant.isfinite(), secant, 0.0)
        higher = torch.maximum(bend, secant)
        left = _norm(_descent(further, before, higher, tried, theta))
        taken = left.isfinite() & (left <= bound)
        place, slope = _chosen(taken, tried, place), _chosen(taken, further, slope)
        bend = torch.where(taken, higher, 2 * higher)
        seen = seen | visible
    descent = _descent(slope, before, bend, place, theta)
    moved = tree.subtract(tree.combine(1.0, place, _length(bend), descent), theta)
    # Where nothing bends −G is the same everywhere, and the dual.
    after = {
        name: torch.where(bend > 0, leaf + bend * moved[name], -slope[name])
        for name, leaf in before.items()
    }
    return LocalSolution(after, torch.where(seen, bend, smoothness), loss, moved)


def _start(slope: Tree, steepness: Tensor, dual: Tree, remember: bool) -> Tree:
    """ỹ⁻, or what stands for it."""
    if not remember:
        return tree.zeros_like(slope)
    fits = _norm(tree.add(slope, dual)) < steepness
    return {name: torch.where(fits, leaf, -slope[name]) for name, leaf in dual.items()}


def _descent(slope: Tree, before: Tree, rho: Tensor, place: Tree, theta: Tree) -> Tree:
    """The negative gradient of the local problem: −(G + ỹ⁻ + ρ̃(θ_i − θ))."""
    return {
        name: -(leaf + before[name] + rho * (place[name] - theta[name]))
        for name, leaf in slope.items()
    }


def _length(bend: Tensor) -> Tensor:
    """1/(ρ̃ + L̂) with ρ̃ = L̂; 0 while that is unknown."""
    return torch.where(bend > 0, 1 / (2 * torch.where(bend > 0, bend, 1.0)), 0.0)


def _norm(a: Tree) -> Tensor:
    return tree.squared_norm(a).sqrt()


def _chosen(taken: Tensor, new: Tree, old: Tree) -> Tree:
    return {name: torch.where(taken, leaf, old[name]) for name, leaf in new.items()}
