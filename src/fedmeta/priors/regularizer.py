"""What the platform asks of a regulariser, and what all of them do with a prior model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import ModelError, SettingError, require
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import explained

_SAME = "use a prior of the same model"


@runtime_checkable
class Regularizer(Protocol):
    """λ D(θ, θ_p): what a platform step adds to the objective."""

    @property
    def strength(self) -> float:
        """λ ≥ 0."""

    @property
    def prior(self) -> Tree:
        """θ_p, or some of its tensors."""

    def value(self, theta: Tree) -> Tensor:
        """λ D(θ, θ_p)."""

    def gradient(self, theta: Tree) -> Tree:
        """λ ∇D(θ, θ_p), with all names of θ: zero for a tensor that θ_p does not have."""

    def fitted(self, theta: Tree) -> Self:
        """The same on θ's device and in its dtype; refuses a prior of another model by tensor.

        It looks at no values, so it may be called in every round, and in a recorded one.
        """

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if values make no sense; called once before a run."""


@runtime_checkable
class Proximal(Regularizer, Protocol):
    """A regulariser whose proximal step is a formula."""

    def proximal(self, centre: Tree, stiffness: Tensor) -> Tree:
        """argmin_θ (s/2)‖θ − c‖² + λ D(θ, θ_p) for stiffness s and centre c, with c's names."""


def with_proximal(prior: Regularizer) -> Proximal:
    """The same regulariser, or an error if it has no closed proximal step.

    Example:
        >>> from fedmeta.priors import Bregman
        >>> with_proximal(Bregman(1.0, {"a": torch.zeros(1)}, tree.squared_norm))
        Traceback (most recent call last):
        fedmeta.core.errors.SettingError: Bregman has no closed proximal step: use platform \
"linearised", or SquaredEuclidean or SquaredMahalanobis as prior
    """
    if not isinstance(prior, Proximal):
        raise SettingError(
            f"{type(prior).__name__} has no closed proximal step",
            'use platform "linearised", or SquaredEuclidean or SquaredMahalanobis as prior',
        )
    return prior


@dataclass(frozen=True, eq=False)
class Divergence:
    """What the regularisers of this package have in common: λ ≥ 0 and θ_p.

    Args:
        strength: λ ≥ 0.
        prior: θ_p, a tree with the names and shapes of θ, or of some of its tensors.
    """

    strength: float
    prior: Tree

    def __post_init__(self) -> None:
        finite = 0 <= self.strength < float("inf")
        require(finite, "the prior's strength λ", self.strength, "a number of at least 0")

    def fitted(self, theta: Tree) -> Self:
        """The same on θ's device and in its dtype; refuses a prior of another model by tensor."""
        common = part(theta, self.prior)
        require_shapes("the prior model", self.prior, common, _SAME)
        return replace(self, prior=as_in(self.prior, common))

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if it is not finite: a look at values, once before a run."""
        fitted = self.fitted(theta)
        if not tree.is_finite(fitted.prior):
            raise ModelError("the prior model has NaN or infinite entries", "use another prior")
        return fitted


def part(theta: Tree, prior: Tree) -> Tree:
    """The tensors of θ that the prior model has too, in θ's order.

    Example:
        >>> part({"body": torch.ones(1), "head": torch.ones(1)}, {"body": torch.zeros(1)})
        {'body': tensor([1.])}
    """
    common = {name: leaf for name, leaf in theta.items() if name in prior}
    if not common:
        raise ModelError(
            f"the prior model has no tensor {next(iter(theta))!r} nor any other of this model",
            _SAME,
        )
    return common


def pair(theta: Tree, prior: Tree) -> tuple[Tree, Tree]:
    """The tensors that θ and θ_p have in common, both in θ's order."""
    common = part(theta, prior)
    return common, {name: prior[name] for name in common}


def whole(some: Tree, rest: Tree) -> Tree:
    """A tree with the names of `rest`, whose tensors stand where `some` has none."""
    return {name: some.get(name, leaf) for name, leaf in rest.items()}


def whole_gradient(some: Tree, theta: Tree) -> Tree:
    """A gradient with all names of θ; zeros are made only where they are needed."""
    return {n: some[n] if n in some else torch.zeros_like(leaf) for n, leaf in theta.items()}


def as_in(given: Tree, theta: Tree) -> Tree:
    """The tensors of θ's names, on its device and in its dtype."""
    return {n: given[n].to(device=leaf.device, dtype=leaf.dtype) for n, leaf in theta.items()}


def require_shapes(what: str, given: Tree, theta: Tree, remedy: str) -> None:
    """Refuse a tree that lacks a tensor of θ or has it in another shape, by the tensor's name."""
    for name, leaf in theta.items():
        if name not in given:
            raise ModelError(f"{what} has no tensor {name!r}", remedy)
        if given[name].shape != leaf.shape:
            raise ModelError(
                f"tensor {name!r} has shape {tuple(given[name].shape)} in {what} "
                f"and {tuple(leaf.shape)} in this model",
                remedy,
            )


def described(prior: Regularizer, theta: Tree) -> dict[str, Any]:
    """What a run's settings say of its prior; refuses one that does not fit θ.

    Example:
        >>> from fedmeta.priors import SquaredEuclidean
        >>> theta = {"body": torch.ones(1), "head": torch.ones(1)}
        >>> described(SquaredEuclidean(0.5, {"body": torch.ones(1)}), theta)
        {'kind': 'SquaredEuclidean', 'strength': 0.5, 'tied': ['body'], 'free': ['head']}
    """
    names = prior.fitted(theta).prior
    return {
        "kind": type(prior).__name__,
        "strength": prior.strength,
        "tied": [name for name in theta if name in names],
        "free": [name for name in theta if name not in names],
    }


def gradient_of(value: Callable[[Tree], Tensor], theta: Tree) -> Tree:
    """∇value(θ) by autograd, with all names of θ."""
    gradient: Tree = torch.func.grad(value)(theta)
    return gradient


def call_own(what: str, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """The result of a user's function, or one line that says how it fails."""
    with explained(f"{what} fails", "give a function that takes the tensors of the prior model"):
        result = function(*arguments)
    if not isinstance(result, Tensor):
        raise SettingError(f"{what} returns no tensor ({type(result).__name__})", "return one")
    return result


def unwrapped(values: Tensor) -> Tensor:
    """The numbers of a tensor that may be mapped over repeats, all of them, to be looked at."""
    while torch._C._functorch.is_functorch_wrapped_tensor(values):
        values = torch._C._functorch.get_unwrapped(values)
    return values.detach()
