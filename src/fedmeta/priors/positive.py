"""Divergences between positive numbers: those that a function makes of θ and of θ_p."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.tree import Tree
from fedmeta.priors.regularizer import Divergence, call_own, gradient_of, pair, unwrapped


@dataclass(frozen=True)
class PositiveParameters:
    """All parameters, mapped one by one to numbers above 0, as one vector.

    Args:
        function: a tensor → one of the same shape with positive entries.

    Example:
        >>> PositiveParameters(torch.exp)({"a": torch.tensor([0.0]), "b": torch.tensor([[0.0]])})
        tensor([1., 1.])
    """

    function: Callable[[Tensor], Tensor] = softplus

    def __call__(self, theta: Tree) -> Tensor:
        """The vector of all positive numbers, in θ's order."""
        return torch.cat([self.function(leaf).reshape(-1) for leaf in theta.values()])


@dataclass(frozen=True, eq=False)
class _OnPositiveNumbers(Divergence, ABC):
    """λ Σ d(x, p) over the entries of x = f(θ) and p = f(θ_p).

    The gradient goes through f by autograd. If f(θ) leaves the positive numbers on the way, value
    and gradient are NaN there, which ends the run as one that diverged.
    """

    positive: Callable[[Tree], Tensor] = PositiveParameters()

    @staticmethod
    @abstractmethod
    def between(x: Tensor, p: Tensor) -> Tensor:
        """d(x, p), entry by entry."""

    def value(self, theta: Tree) -> Tensor:
        """λ Σ d(f(θ), f(θ_p))."""
        x, p = (self.positive(point) for point in pair(theta, self.prior))
        # Added, as an entry that is replaced would have the gradient 0 and not be noticed.
        x = x + torch.where(x > 0, 0.0, torch.nan)
        return self.strength * self.between(x, p).sum()

    def gradient(self, theta: Tree) -> Tree:
        """λ ∇_θ Σ d(f(θ), f(θ_p))."""
        return gradient_of(self.value, theta)

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if f is not positive at θ_p and at θ, or of different shapes."""
        fitted = super().checked(theta)
        what = "the positive function of the model"
        x, p = (call_own(what, self.positive, point) for point in pair(theta, fitted.prior))
        if x.shape != p.shape:
            raise SettingError(
                f"{what} has shape {tuple(x.shape)} for this model and {tuple(p.shape)} for the "
                "prior one",
                "return as many numbers for any parameters",
            )
        for numbers, where in ((unwrapped(p), "the prior"), (unwrapped(x), "the initial")):
            if not bool((numbers.isfinite() & (numbers > 0)).all()):
                raise ModelError(
                    f"{what} is not positive and finite at {where} model (least entry "
                    f"{float(numbers.min()):.4g}, largest {float(numbers.max()):.4g})",
                    "map its values to numbers above 0, by softplus, exp or softmax",
                )
        return fitted


@dataclass(frozen=True, eq=False)
class GeneralisedKL(_OnPositiveNumbers):
    """λ Σ x log(x/p) − x + p for x = f(θ), p = f(θ_p): the Bregman divergence of Σ x log x.

    The gradient is λ Jᵀ log(x/p), with J the Jacobian of f at θ, computed by autograd.

    Args:
        strength: λ ≥ 0.
        prior: θ_p, with the names and shapes of θ, or of some of its tensors: f then sees those.
        positive: f, from a tree to a tensor of positive numbers: predicted probabilities on the
            platform's own data, or the parameters themselves, mapped through a positive function.

    Example:
        >>> kl = GeneralisedKL(1.0, {"a": torch.tensor([0.0])}, PositiveParameters(torch.exp))
        >>> kl.value({"a": torch.tensor([2.0])}), kl.gradient({"a": torch.tensor([1.0])})
        (tensor(8.3891), {'a': tensor([2.7183])})

    Banerjee, Merugu, Dhillon, Ghosh, Clustering with Bregman divergences, JMLR 2005.
    """

    # A run's settings are the fields: this one tells its two kinds apart.
    kind: str = field(default="generalised KL", init=False)

    @staticmethod
    def between(x: Tensor, p: Tensor) -> Tensor:
        """x log(x/p) − x + p."""
        return x * (x.log() - p.log()) - x + p


@dataclass(frozen=True, eq=False)
class ItakuraSaito(_OnPositiveNumbers):
    """λ Σ x/p − log(x/p) − 1 for x = f(θ), p = f(θ_p): the Bregman divergence of −Σ log x.

    The gradient is λ Jᵀ (1/p − 1/x), with J the Jacobian of f at θ, computed by autograd. It sees
    ratios alone: numbers of any size count alike.

    Args:
        strength: λ ≥ 0.
        prior: θ_p, with the names and shapes of θ, or of some of its tensors: f then sees those.
        positive: f, see `GeneralisedKL`.

    Example:
        >>> distance = ItakuraSaito(1.0, {"a": torch.tensor([1.0])}, PositiveParameters(torch.abs))
        >>> theta = {"a": torch.tensor([2.0])}
        >>> distance.value(theta), distance.gradient(theta)
        (tensor(0.3069), {'a': tensor([0.5000])})

    Itakura, Saito, Analysis synthesis telephony based on the maximum likelihood method, 1968.
    """

    # A run's settings are the fields: this one tells its two kinds apart.
    kind: str = field(default="Itakura-Saito", init=False)

    @staticmethod
    def between(x: Tensor, p: Tensor) -> Tensor:
        """x/p − log(x/p) − 1."""
        return x / p - (x.log() - p.log()) - 1
