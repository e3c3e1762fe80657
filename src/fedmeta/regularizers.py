"""What ties the meta-model to a prior model θ_p. Only the platform computes it.

F(θ) = Σ w_i L_i(φ_i(θ), D^q_i) + λ D_h(θ, θ_p),   D_h a Bregman divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedmeta import tree
from fedmeta.errors import ModelError, require
from fedmeta.tree import Tree


@dataclass(frozen=True, eq=False)
class SquaredEuclidean:
    """λ‖θ − θ_p‖², the Bregman divergence of h = ‖·‖².

    Gradient 2λ(θ − θ_p); proximal step
    argmin_θ (s/2)‖θ − c‖² + λ‖θ − θ_p‖² = (s·c + 2λθ_p) / (s + 2λ).

    Args:
        strength: λ ≥ 0.
        prior: θ_p, a tree with the names and shapes of θ.

    Example:
        >>> import torch
        >>> prior = SquaredEuclidean(0.5, {"a": torch.tensor([1.0])})
        >>> prior.value({"a": torch.tensor([3.0])}), prior.gradient({"a": torch.tensor([3.0])})
        (tensor(2.), {'a': tensor([2.])})

    Yue et al., MobiHoc 2021, section 3.
    """

    strength: float
    prior: Tree

    def __post_init__(self) -> None:
        finite = 0 <= self.strength < float("inf")
        require(finite, "the prior's strength λ", self.strength, "a number of at least 0")

    def value(self, theta: Tree) -> Tensor:
        """λ‖θ − θ_p‖²."""
        return self.strength * tree.squared_norm(tree.subtract(theta, self.prior))

    def gradient(self, theta: Tree) -> Tree:
        """2λ(θ − θ_p)."""
        return tree.combine(2 * self.strength, theta, -2 * self.strength, self.prior)

    def proximal(self, centre: Tree, stiffness: Tensor) -> Tree:
        """argmin_θ (s/2)‖θ − c‖² + λ‖θ − θ_p‖² for stiffness s and centre c."""
        total = stiffness + 2 * self.strength
        return tree.combine(stiffness / total, centre, 2 * self.strength / total, self.prior)

    def checked(self, theta: Tree) -> SquaredEuclidean:
        """Fitted, and refused if it is not finite: a look at values, once before a run."""
        fitted = self.fitted(theta)
        if not tree.is_finite(fitted.prior):
            raise ModelError("the prior model has NaN or infinite entries", "use another prior")
        return fitted

    def fitted(self, theta: Tree) -> SquaredEuclidean:
        """The same on θ's device and in its dtype; refuses a prior of another model by tensor."""
        for name, leaf in theta.items():
            if name not in self.prior:
                raise ModelError(
                    f"the prior model has no tensor {name!r}", "use a prior of the same model"
                )
            if self.prior[name].shape != leaf.shape:
                raise ModelError(
                    f"tensor {name!r} has shape {tuple(self.prior[name].shape)} in the prior "
                    f"model and {tuple(leaf.shape)} in this one",
                    "use a prior of the same model",
                )
        prior = {
            n: self.prior[n].to(device=leaf.device, dtype=leaf.dtype) for n, leaf in theta.items()
        }
        return SquaredEuclidean(self.strength, prior)
