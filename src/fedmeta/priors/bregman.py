"""The Bregman divergence of any convex function, derived by autograd."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedmeta.core import randomness, tree
from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.tree import Tree
from fedmeta.priors.regularizer import Divergence, call_own, gradient_of, pair, whole_gradient

# Of the random points, four of each, in units of a tensor's own size.
_RADII = 4 * (0.01,) + 4 * (0.1,) + 4 * (1.0,) + 4 * (10.0,)


class ConvexityWarning(UserWarning):
    """A function that was said to be convex is not; the message has the evidence."""


@dataclass(frozen=True, eq=False)
class Bregman(Divergence):
    """λ[h(θ) − h(θ_p) − ⟨∇h(θ_p), θ − θ_p⟩], the Bregman divergence of a convex h.

    Gradient λ(∇h(θ) − ∇h(θ_p)). Before a run h is probed between θ_p and random points: where it
    is found not to be convex there is a `ConvexityWarning` with the evidence.

    Args:
        strength: λ ≥ 0.
        prior: θ_p, with the names and shapes of θ, or of some of its tensors: h then sees those.
        h: a tree → a tensor with one number, differentiable by torch.

    Example:
        >>> def h(theta):
        ...     return theta["a"].exp().sum()
        >>> prior = Bregman(1.0, {"a": torch.tensor([0.0])}, h)
        >>> prior.value({"a": torch.tensor([1.0])}), prior.gradient({"a": torch.tensor([1.0])})
        (tensor(0.7183), {'a': tensor([1.7183])})

    Bregman, The relaxation method of finding the common point of convex sets, 1967.
    """

    h: Callable[[Tree], Tensor]

    def value(self, theta: Tree) -> Tensor:
        """λ[h(θ) − h(θ_p) − ⟨∇h(θ_p), θ − θ_p⟩]."""
        some, prior = pair(theta, self.prior)
        base, at_base = torch.func.grad_and_value(self.h)(prior)
        divergence: Tensor = self.h(some) - at_base - _inner(base, some, prior)
        return self.strength * divergence

    def gradient(self, theta: Tree) -> Tree:
        """λ(∇h(θ) − ∇h(θ_p))."""
        here, base = (gradient_of(self.h, point) for point in pair(theta, self.prior))
        pull = tree.scale(self.strength, tree.subtract(here, base))
        return whole_gradient(pull, theta)

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if h is no finite number at θ_p; warns where h is not convex."""
        fitted = super().checked(theta)
        at_prior = call_own("h", self.h, fitted.prior)
        if at_prior.ndim > 0:
            raise SettingError(
                f"h returns shape {tuple(at_prior.shape)}", "return one number, a 0-dim tensor"
            )
        if not bool(at_prior.isfinite()) or not tree.is_finite(gradient_of(self.h, fitted.prior)):
            raise ModelError(
                "h or its gradient is not finite at the prior model",
                "use an h whose domain has the prior model inside",
            )
        if evidence := fitted.against_convexity():
            warnings.warn(f"h is not convex: {evidence}", ConvexityWarning, stacklevel=2)
        return fitted

    def against_convexity(self, seed: int = 0) -> str | None:
        """What shows that h is not convex, found on segments from θ_p to random points, or None.

        A point x is evidence if D(x, θ_p) < 0 or h((x + θ_p)/2) > (h(x) + h(θ_p))/2, by more than
        rounding explains. Where h is not finite it is taken to end: that is no evidence.

        Args:
            seed: of the random points.

        Example:
            >>> def h(theta):
            ...     return -theta["a"].square().sum()
            >>> Bregman(1.0, {"a": torch.tensor([0.0])}, h).against_convexity()
            'at random point 1 (seed 0, radius 0.01) the divergence is -1.392e-05, below 0'
        """
        base, at_base = torch.func.grad_and_value(self.h)(self.prior)
        rounding = 1e3 * torch.finfo(at_base.dtype).eps
        for number, radius in enumerate(_RADII, start=1):
            x = self._random_point(seed, number, radius)
            middle = tree.combine(0.5, x, 0.5, self.prior)
            h_x, h_middle, step = self.h(x), self.h(middle), _inner(base, x, self.prior)
            allowed = rounding * (h_x.abs() + at_base.abs() + step.abs())
            divergence, mean = h_x - at_base - step, (h_x + at_base) / 2
            if not bool(h_x.isfinite()):
                continue
            where = f"random point {number} (seed {seed}, radius {radius:g})"
            if bool(divergence < -allowed):
                return f"at {where} the divergence is {float(divergence):.4g}, below 0"
            if bool(h_middle > mean + allowed):
                return (
                    f"half-way to {where} it is {float(h_middle):.6g}, above "
                    f"{float(mean):.6g}, the mean of the two ends"
                )
        return None

    def _random_point(self, seed: int, number: int, radius: float) -> Tree:
        key = randomness.fold(randomness.key(seed), number)
        point = {}
        for place, (name, leaf) in enumerate(self.prior.items()):
            draw = randomness.truncated_normal(randomness.fold(key, place), leaf.numel())
            size = leaf.square().mean().sqrt()
            size = torch.where(size > 0, size, torch.ones_like(size))
            point[name] = leaf + radius * size * draw.reshape(leaf.shape).to(leaf)
        return point


def _inner(gradient: Tree, theta: Tree, prior: Tree) -> Tensor:
    """⟨g, θ − θ_p⟩."""
    gap = tree.subtract(theta, prior)
    return torch.stack([(gradient[name] * leaf).sum() for name, leaf in gap.items()]).sum()
