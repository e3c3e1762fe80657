"""Squared distances of the parameters to those of the prior model, plain and weighted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import ModelError
from fedmeta.core.tree import Tree
from fedmeta.priors.regularizer import (
    Divergence,
    as_in,
    part,
    require_shapes,
    whole,
    whole_gradient,
)


@dataclass(frozen=True, eq=False)
class SquaredEuclidean(Divergence):
    """λ‖θ − θ_p‖², the Bregman divergence of h = ‖·‖².

    Gradient 2λ(θ − θ_p); proximal step
    argmin_θ (s/2)‖θ − c‖² + λ‖θ − θ_p‖² = (s·c + 2λθ_p) / (s + 2λ).

    Args:
        strength: λ ≥ 0.
        prior: θ_p, a tree with the names and shapes of θ, or of some of its tensors.

    Example:
        >>> import torch
        >>> prior = SquaredEuclidean(0.5, {"a": torch.tensor([1.0])})
        >>> prior.value({"a": torch.tensor([3.0])}), prior.gradient({"a": torch.tensor([3.0])})
        (tensor(2.), {'a': tensor([2.])})

    Yue et al., MobiHoc 2021, section 3.
    """

    def value(self, theta: Tree) -> Tensor:
        """λ‖θ − θ_p‖²."""
        return self.strength * tree.squared_norm(tree.subtract(part(theta, self.prior), self.prior))

    def gradient(self, theta: Tree) -> Tree:
        """2λ(θ − θ_p)."""
        some = part(theta, self.prior)
        pull = tree.combine(2 * self.strength, some, -2 * self.strength, self.prior)
        return whole_gradient(pull, theta)

    def proximal(self, centre: Tree, stiffness: Tensor) -> Tree:
        """argmin_θ (s/2)‖θ − c‖² + λ‖θ − θ_p‖² for stiffness s and centre c."""
        total = stiffness + 2 * self.strength
        some = part(centre, self.prior)
        held = tree.combine(stiffness / total, some, 2 * self.strength / total, self.prior)
        return whole(held, centre)


@dataclass(frozen=True, eq=False)
class SquaredMahalanobis(Divergence):
    """λ(θ − θ_p)ᵀA(θ − θ_p) with a diagonal A ≥ 0, the Bregman divergence of h = θᵀAθ.

    Gradient 2λA(θ − θ_p); proximal step, entry by entry,
    argmin_θ (s/2)‖θ − c‖² + λ(θ − θ_p)ᵀA(θ − θ_p) = (s·c + 2λAθ_p) / (s + 2λA).
    With A = ½·`fisher` it is elastic weight consolidation; A may also be `path_importance`.

    Args:
        strength: λ ≥ 0.
        prior: θ_p, a tree with the names and shapes of θ, or of some of its tensors.
        importance: the diagonal of A, a tree with at least the names of θ_p and its shapes.

    Example:
        >>> theta, prior = {"a": torch.tensor([3.0, 3.0])}, {"a": torch.tensor([1.0, 1.0])}
        >>> held = SquaredMahalanobis(0.5, prior, {"a": torch.tensor([2.0, 0.0])})
        >>> held.value(theta), held.gradient(theta)
        (tensor(4.), {'a': tensor([4., 0.])})

    Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017.
    """

    importance: Tree

    def value(self, theta: Tree) -> Tensor:
        """λ Σ A(θ − θ_p)²."""
        gap = tree.subtract(part(theta, self.prior), self.prior)
        terms = [(self.importance[name] * leaf.square()).sum() for name, leaf in gap.items()]
        return self.strength * torch.stack(terms).sum()

    def gradient(self, theta: Tree) -> Tree:
        """2λA(θ − θ_p)."""
        gap = tree.subtract(part(theta, self.prior), self.prior)
        pull = {n: 2 * self.strength * self.importance[n] * leaf for n, leaf in gap.items()}
        return whole_gradient(pull, theta)

    def proximal(self, centre: Tree, stiffness: Tensor) -> Tree:
        """argmin_θ (s/2)‖θ − c‖² + λ Σ A(θ − θ_p)² for stiffness s and centre c."""
        held = {}
        for name, leaf in part(centre, self.prior).items():
            force = 2 * self.strength * self.importance[name]
            held[name] = (stiffness * leaf + force * self.prior[name]) / (stiffness + force)
        return whole(held, centre)

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if it is not finite or an importance is below 0."""
        fitted = super().checked(theta)
        for name, leaf in fitted.importance.items():
            if not bool((leaf.isfinite() & (leaf >= 0)).all()):
                raise ModelError(
                    f"the importance of tensor {name!r} has negative, NaN or infinite entries",
                    "give finite numbers of at least 0",
                )
        return fitted

    def fitted(self, theta: Tree) -> Self:
        """The same on θ's device and in its dtype; refuses an importance of another model."""
        fitted = super().fitted(theta)
        remedy = "estimate the importance on the model that the prior is of"
        for name in self.importance:
            if name not in theta and name not in self.prior:
                raise ModelError(
                    f"the importance has a tensor {name!r}, which this model does not", remedy
                )
        require_shapes("the importance", self.importance, fitted.prior, remedy)
        return replace(fitted, importance=as_in(self.importance, fitted.prior))
