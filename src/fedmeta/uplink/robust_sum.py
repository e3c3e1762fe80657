"""Sums that a share of liars cannot bend far, whatever they send.

All of them look at what nodes (or the edges of a fleet) send per weight, x_i = v_i/w_i, so that
large and small ones are comparable and nobody gains by claiming samples. With m contributions, of
which k = ⌊share·m⌋ may be lies:

    trimmed-mean    number by number without the k largest and the k smallest, the mean of the rest
    median          number by number
    krum            Multi-Krum: the m − k whose m − k − 2 nearest neighbours are nearest, added up;
                    whom the guard has refused already is among the k

The first two are given back as Σw times that mean. They count everybody, and a node goes on from
its new state; under "krum" a node that is left out keeps its old one, as if its upload were lost.
(Norm bounding is the guard's "clip".) Whoever sees only a sum can do none of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.errors import require, require_choice
from fedmeta.core.tree import map_leaves

Method = Literal["sum", "trimmed-mean", "median", "krum"]
_COUNTS = "refused"  # a metric that counts nodes: nothing to be averaged


@dataclass(frozen=True)
class RobustSum:
    """How contributions are added up.

    Args:
        method: "sum", "trimmed-mean", "median" or "krum".
        share: of contributions that may be lies, in (0, 0.5); "median" takes any.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0], [900.0]])
        >>> RobustSum("trimmed-mean", 0.25).middle(x, torch.ones(4, dtype=torch.bool))
        tensor([2.5000])
    """

    method: Method = "sum"
    share: float = 0.3

    def __post_init__(self) -> None:
        require_choice("robust.method", self.method, get_args(Method))
        require(0 < self.share < 0.5, "robust.share", self.share, "a share above 0 and below 0.5")

    @property
    def number_by_number(self) -> bool:
        """Whether the result is no sum of contributions, but made of parts of them."""
        return self.method in ("trimmed-mean", "median")

    def selected(
        self, rows: Contribution, weights: Tensor, valid: Tensor, refused: int = 0
    ) -> Tensor:
        """Which contributions are added up, (n,): all that are valid, but under "krum".

        Args:
            rows: contributions along a first axis.
            weights: w_i, (n,).
            valid: who may be; the numbers of others may be anything. They count as lies found.
            refused: further lies found, which are not among the rows.
        """
        if self.method != "krum":
            return valid
        per_weight = torch.cat(
            [_per_weight(leaf, weights).double() for leaf in rows.update.values()], dim=1
        )
        points = torch.where(valid.unsqueeze(1), per_weight, torch.zeros_like(per_weight))
        lengths = points.square().sum(1)
        apart = (lengths.unsqueeze(1) + lengths - 2 * points @ points.T).clamp(min=0)
        itself = torch.eye(len(weights), dtype=torch.bool, device=weights.device)
        apart = torch.where(valid | itself, apart, torch.inf)
        apart = torch.where(itself, torch.zeros_like(apart), apart)
        count = valid.sum()
        everybody = len(weights) + refused
        left_out = (int(self.share * everybody) - (everybody - count)).clamp(min=0)
        neighbours = (count - left_out - 2).clamp(min=1)
        place = torch.arange(len(weights), device=weights.device)
        near = (place > 0) & (place <= neighbours)  # the nearest of all is itself
        scores = torch.where(near, apart.sort(dim=1).values, torch.zeros_like(apart)).sum(1)
        scores = torch.where(valid, scores, torch.inf)
        rank = scores.argsort(stable=True).argsort(stable=True)
        return valid & (rank < count - left_out)

    def added(self, rows: Contribution, weights: Tensor) -> Contribution:
        """The robust sum of contributions along a first axis; those of weight 0 were refused.

        Args:
            rows: contributions; Σρ_i is their plain sum.
            weights: w_i, (n,).
        """
        valid = rows.weight > 0
        share = torch.where(valid, weights, torch.zeros_like(weights)).sum()

        def middle(leaf: Tensor) -> Tensor:
            found = self.middle(_per_weight(leaf, weights), valid)
            return (share * found).reshape(leaf.shape[1:]).to(leaf.dtype)

        metrics = {
            name: leaf.sum(0) if name == _COUNTS else middle(leaf)
            for name, leaf in rows.metrics.items()
        }
        update = {name: middle(leaf) for name, leaf in rows.update.items()}
        return Contribution(update, rows.weight.sum(0), metrics)

    def middle(self, rows: Tensor, valid: Tensor) -> Tensor:
        """The mean of what is neither among the largest nor the smallest, number by number.

        Args:
            rows: (n, d).
            valid: which of the rows count, (n,).
        """
        count = valid.sum()
        most = ((count - 1) // 2).clamp(min=0)
        cut = most if self.method == "median" else torch.minimum((self.share * count).long(), most)
        ordered = torch.where(valid.unsqueeze(1), rows, torch.inf).sort(dim=0).values
        place = torch.arange(len(rows), device=rows.device)
        inside = ((place >= cut) & (place < count - cut)).unsqueeze(1)
        kept = torch.where(inside, ordered, torch.zeros_like(ordered))
        return kept.sum(0) / (count - 2 * cut).clamp(min=1)


def _per_weight(leaf: Tensor, weights: Tensor) -> Tensor:
    return leaf.reshape(len(weights), -1) / weights.unsqueeze(1)


def stacked(contributions: list[Contribution]) -> Contribution:
    """Contributions along a first axis."""
    together: Contribution = map_leaves(lambda *leaves: torch.stack(leaves), *contributions)
    return together
