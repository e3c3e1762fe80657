"""Where the platform moves: what it makes of the nodes' mean updates Δ, with what it remembers.

| direction | remembers | D |
|---|---|---|
| plain | nothing | Δ |
| momentum | m = 0.9m + Δ | m |
| adam | m = 0.9m + 0.1Δ, s = 0.999s + 0.001Δ² | (m/(1−0.9ᵗ)) / (√(s/(1−0.999ᵗ)) + 1e-8) |
| yogi | the same m, s = s + 0.001·sign(Δ² − s)Δ² | the same |
| orthogonal | M = 0.9M + 0.1Δ | UVᵀ of M = USVᵀ, layer by layer (`spectral`) |

References: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification, 2019 (momentum); Kingma, Ba, Adam, ICLR 2015; Reddi et al., Adaptive
Federated Optimization, ICLR 2021 (Adam and Yogi on the mean update; there with 0.99, 1e-3 and no
correction of the moments' start); Jordan et al., Muon, 2024 (orthogonal).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from fedmeta.algorithms import spectral
from fedmeta.core import tree
from fedmeta.core.tree import Tree

Direction = Literal["plain", "momentum", "adam", "yogi", "orthogonal"]

_MOMENTUM = 0.9  # updates count for about ten rounds
_SQUARES = 0.999  # and their squares for about a thousand
_EPSILON = 1e-8
_TINY = 1e-12  # by which nothing is divided


def start(direction: Direction, theta: Tree) -> dict[str, Tree]:
    """What is remembered before the first update."""
    if direction == "plain":
        return {}
    if direction in ("momentum", "orthogonal"):
        return {"contribution": tree.zeros_like(theta)}
    some = next(iter(theta.values()))
    return {
        "moment1": tree.zeros_like(theta),
        "moment2": tree.zeros_like(theta),
        "updates": {"count": torch.zeros((), dtype=some.dtype, device=some.device)},
    }


def remembered(direction: Direction, memory: Mapping[str, Tree], update: Tree) -> dict[str, Tree]:
    """What is remembered after one more update Δ.

    Moments of Adam and Yogi are those of the gradient, −Δ, as checkpoints have always had them.
    """
    if direction == "plain":
        return {}
    if direction == "momentum":
        return {"contribution": tree.combine(_MOMENTUM, memory["contribution"], 1.0, update)}
    if direction == "orthogonal":
        m = tree.combine(_MOMENTUM, memory["contribution"], 1 - _MOMENTUM, update)
        return {"contribution": m}
    second = {}
    for name, leaf in update.items():
        before, square = memory["moment2"][name], leaf.square()
        if direction == "adam":
            second[name] = _SQUARES * before + _ONE_MORE_SQUARE * square
        else:
            second[name] = before + _ONE_MORE_SQUARE * (square - before).sign() * square
    return {
        "moment1": tree.combine(_MOMENTUM, memory["moment1"], -_ONE_MORE, update),
        "moment2": second,
        "updates": {"count": memory["updates"]["count"] + 1},
    }


_ONE_MORE, _ONE_MORE_SQUARE = 0.1, 0.001  # 1 − 0.9 and 1 − 0.999, but for their last bits


def restarted(direction: Direction, update: Tree, rounds: torch.Tensor) -> dict[str, Tree]:
    """What is remembered if an update is all there is.

    Args:
        direction: which.
        update: Δ.
        rounds: how many there have been; alone, Δ counts for as much as an average of so many.
    """
    if direction == "orthogonal":
        return {"contribution": tree.scale(1 - _MOMENTUM**rounds, update)}
    return remembered(direction, start(direction, update), update)


def along(
    direction: Direction, memory: Mapping[str, Tree], update: Tree, length: float = 1.0
) -> Tree:
    """length · D.

    Args:
        direction: which.
        memory: from `remembered`, with this update.
        update: Δ.
        length: what D is multiplied by.

    Example:
        >>> update = {"a": torch.tensor([4.0, -0.5])}
        >>> memory = remembered("adam", start("adam", update), update)
        >>> along("adam", memory, update, 0.1)
        {'a': tensor([ 0.1000, -0.1000])}
    """
    if direction == "plain":
        return tree.scale(length, update)
    if direction == "momentum":
        return tree.scale(length, memory["contribution"])
    if direction == "orthogonal":
        return tree.scale(length, spectral.directions(memory["contribution"]))
    count = memory["updates"]["count"]
    return {
        name: -length
        * (leaf / (1 - _MOMENTUM**count))
        / ((memory["moment2"][name] / (1 - _SQUARES**count)).sqrt() + _EPSILON)
        for name, leaf in memory["moment1"].items()
    }


def as_long_as_orthogonal(direction: Direction, steps: Tree) -> Tree:
    """D, as a whole made as long as an orthogonal direction is.

        ‖D‖² = Σ min(a, b)·max(1, a/b)   over layers as a × b matrices

    So one length means the same for all directions, whatever the scale of loss and gradient. What
    is orthogonal stays as it is.

    Example:
        >>> d = as_long_as_orthogonal("plain", {"weight": torch.full((2, 8), 5.0)})
        >>> float(tree.squared_norm(d).round(decimals=4))
        2.0
    """
    if direction == "orthogonal":
        return steps
    wanted = sum(spectral.squared_length(leaf) for leaf in steps.values())
    return tree.scale(wanted**0.5 / (tree.squared_norm(steps).sqrt() + _TINY), steps)


def promised(direction: Direction, update: Tree, moved: Tree) -> torch.Tensor:
    """By how much a step should lower the loss: |⟨Δ, θ⁺ − θ⟩|, part by part.

    Parts are what a direction treats alike: layers of an orthogonal one, else single entries. Taken
    as a whole the sum could vanish by chance, while parts of the step are long.

    Args:
        direction: which.
        update: Δ in the unit of −∇F.
        moved: θ⁺ − θ.

    Example:
        >>> update, moved = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([2.0, -1.0])}
        >>> promised("adam", update, moved), promised("orthogonal", update, moved)
        (tensor(4.), tensor(0.))
    """
    products = [update[name] * leaf for name, leaf in moved.items()]
    if direction == "orthogonal":
        return torch.stack([each.sum() for each in products]).abs().sum()
    return torch.stack([each.abs().sum() for each in products]).sum()
