"""Learned sizes of the inner steps: a tree s beside θ, one number per parameter or per tensor.

    φ = θ − a ⊙ ∇L(θ, Dˢ),   a = α·exp(c·s)

The exponential keeps every step size above 0, and s = 0 is the plain adaptation with α. Nodes and
platform treat θ and s as one tree: the names of s are those of θ with a prefix.

Li, Zhou, Chen, Li, Meta-SGD: Learning to Learn Quickly for Few-Shot Learning, 2017; one number per
tensor as in Antoniou, Edwards, Storkey, How to Train Your MAML, ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedmeta.core.errors import SettingError
from fedmeta.core.tree import Tree

if TYPE_CHECKING:
    from fedmeta.core.objective import Adaptation

PREFIX = "step:"
"""What the names of step sizes begin with."""

MEMORY = "steps"
"""The slot of the platform's memory that holds s."""

Learned = Literal["none", "tensor", "parameter"]


def start(adaptation: Adaptation, theta: Tree) -> Tree:
    """s = 0, named "step:<parameter>", for the parameters that adaptation moves.

    Args:
        adaptation: says whether step sizes are learned, and for what.
        theta: the model.

    Example:
        >>> from fedmeta.core.objective import Adaptation
        >>> start(Adaptation(learned="tensor"), {"bias": torch.ones(3)})
        {'step:bias': tensor(0.)}
        >>> start(Adaptation(), {"bias": torch.ones(3)})
        {}
    """
    if adaptation.learned == "none":
        return {}
    moves, whole = adaptation.moves(theta), adaptation.learned == "tensor"
    return {
        PREFIX + name: leaf.new_zeros(()) if whole else torch.zeros_like(leaf)
        for name, leaf in theta.items()
        if name in moves
    }


def split(joint: Tree) -> tuple[Tree, Tree]:
    """A tree of both as θ and s.

    Example:
        >>> split({"bias": torch.tensor(1.0), "step:bias": torch.tensor(0.5)})
        ({'bias': tensor(1.)}, {'step:bias': tensor(0.5000)})
    """
    theta = {name: leaf for name, leaf in joint.items() if not name.startswith(PREFIX)}
    steps = {name: leaf for name, leaf in joint.items() if name.startswith(PREFIX)}
    return theta, steps


def factors(adaptation: Adaptation, steps: Tree) -> dict[str, Tensor]:
    """exp(c·s) by parameter name: what α is multiplied by.

    Args:
        adaptation: has c, its `learning_scale`.
        steps: s.

    Example:
        >>> from fedmeta.core.objective import Adaptation
        >>> factors(Adaptation(learned="tensor"), {"step:bias": torch.tensor(0.0)})
        {'bias': tensor(1.)}
    """
    scale = adaptation.learning_scale
    return {name.removeprefix(PREFIX): (scale * leaf).exp() for name, leaf in steps.items()}


def multiplied(factors: Tree | None, gradient: Tree) -> Tree:
    """f ⊙ g where there is a factor, else g."""
    if factors is None:
        return gradient
    return {
        name: factors[name] * leaf if name in factors else leaf for name, leaf in gradient.items()
    }


def checked(given: Mapping[str, Tensor], theta: Tree, moves: frozenset[str]) -> Tree:
    """The factors of the parameters that move, on θ's device and in its dtype.

    Args:
        given: factors by parameter name, 0-dimensional or of the parameter's shape.
        theta: the model.
        moves: names of the parameters that adaptation changes.

    Raises:
        SettingError: if they are of another model.
    """
    for name in sorted({*given, *moves}):
        if name not in moves or name not in given:
            raise SettingError(
                f"there is a step size for {name!r}, which adaptation does not move"
                if name in given
                else f"there are step sizes, but none for {name!r}",
                "give one for each parameter in the adaptation's scope, and no other",
            )
        if given[name].ndim > 0 and given[name].shape != theta[name].shape:
            raise SettingError(
                f"the step sizes of {name!r} have shape {tuple(given[name].shape)}",
                f"give one number or shape {tuple(theta[name].shape)}",
            )
    return {
        name: given[name].to(device=leaf.device, dtype=leaf.dtype)
        for name, leaf in theta.items()
        if name in moves
    }
