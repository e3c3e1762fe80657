"""How sure a prediction is, as counted on the source nodes, and when a device should abstain.

The score of a prediction is its margin m = z₁ − z₂, the largest minus the second largest logit.
Source nodes sort the margins of their query samples, after adapting as the model was trained for,
into bins of one width and count how many fell in each and how many of these were right. They send
these counts alone, the platform adds them up, and they travel with the model. Nodes that a model
was trained on are surer, and more often right, than others are: such counts order answers, but
promise nothing. By cross-fitting every node counts under a model that has not seen it.

- Confidence of a bin: (right + 1) / (all + 2), made non-decreasing by pooling adjacent violators
  with the counts as weights. An empty bin takes that of the nearest lower one that is not, those
  below all take the first.
- Threshold for a share s: the k-th of the n ordered margins, k = s·(n + 1), linearly interpolated
  inside its bin (the last one is open: its lower edge). A device abstains if m < threshold; on
  exchangeable samples it does on a share s of them.
- Promise for s: accuracy of all, and of those above the threshold, whose bin counts by the
  fraction of it that lies above. It holds for nodes like the sources if these counted by
  cross-fitting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmeta.core.errors import require

WIDTH = 0.25
BINS = 64
SHARE = 0.1


def margins(outputs: Tensor) -> Tensor:
    """The largest logit minus the second largest, (n, classes) → (n,).

    Example:
        >>> margins(torch.tensor([[1.0, 3.0, 2.5], [0.0, 0.0, -1.0]]))
        tensor([0.5000, 0.0000])
    """
    first = outputs.topk(2, dim=-1).values
    return first[..., 0] - first[..., 1]


def bins(margins: Tensor) -> Tensor:
    """The bin of every margin; the last one is open, NaN is in the first.

    Example:
        >>> bins(torch.tensor([0.0, 0.24, 0.25, 100.0, torch.inf, torch.nan])).tolist()
        [0, 0, 1, 63, 63, 0]
    """
    places = (margins / WIDTH).nan_to_num(nan=0.0, posinf=float(BINS)).clamp(0, BINS - 1)
    return places.to(torch.int64)


def counts(outputs: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Of every bin, how many samples fell in it and how many of them were right: (2, BINS).

    Args:
        outputs: logits, (n, classes).
        labels: class numbers, (n,).
        mask: 1 for samples that count, 0 for padding; None: all count.

    Example:
        >>> counts(torch.tensor([[0.0, 0.3], [1.0, 0.9]]), torch.tensor([1, 1]))[:, :3].tolist()
        [[1, 1, 0], [0, 1, 0]]
    """
    places = torch.arange(BINS, device=outputs.device)
    within = bins(margins(outputs)).unsqueeze(-1) == places
    if mask is not None:
        within = within & (mask > 0).unsqueeze(-1)
    right = (outputs.argmax(dim=-1) == labels).unsqueeze(-1)
    return torch.stack([within.sum(dim=-2), (within & right).sum(dim=-2)])


@dataclass(frozen=True)
class Calibration:
    """What the source nodes counted.

    Args:
        total: query samples of every bin, BINS numbers.
        correct: how many of them were right.
        folds: of cross-fitting; 0: counted under the model that was trained on these very nodes.
        decides: whether the nodes decided how to adapt (`core.decision`), or all adapted as the
            model was trained for: margins of other steps, or of class means, are others.

    Example:
        >>> found = Calibration((4, 4, *[0] * 62), (2, 4, *[0] * 62))
        >>> [round(value, 3) for value in found.table()[:3]]
        [0.5, 0.833, 0.833]
        >>> round(found.threshold(0.25), 4), found.promised(0.25)
        (0.1406, (0.75, 0.8478260869565217))
    """

    total: tuple[int, ...]
    correct: tuple[int, ...]
    folds: int = 0
    decides: bool = False

    def __post_init__(self) -> None:
        for name, each in (("total", self.total), ("correct", self.correct)):
            object.__setattr__(self, name, tuple(int(number) for number in each))
            require(len(each) == BINS, name, len(each), f"{BINS} counts")
        fits = all(0 <= some <= of for some, of in zip(self.correct, self.total, strict=True))
        require(fits, "correct", self.correct, "counts of at least 0 and at most those of total")
        whole = isinstance(self.folds, int) and self.folds >= 0
        require(whole, "folds", self.folds, "a whole number of at least 0")
        require(isinstance(self.decides, bool), "decides", self.decides, "true or false")

    @classmethod
    def of(cls, counted: Tensor, folds: int = 0, decides: bool = False) -> Calibration:
        """From what `counts` gave, summed over nodes: (2, BINS)."""
        total, correct = counted.tolist()
        return cls(tuple(total), tuple(correct), folds, decides)

    @property
    def samples(self) -> int:
        """How many were counted."""
        return sum(self.total)

    def table(self) -> tuple[float, ...]:
        """The probability of being right, bin by bin; 1/2 where nothing was counted."""
        levels: list[tuple[float, int, int]] = []  # value, weight, bins
        for of, right in zip(self.total, self.correct, strict=True):
            if of == 0:
                continue
            value, weight, many = (right + 1) / (of + 2), of, 1
            while levels and levels[-1][0] > value:
                before, mass, pooled = levels.pop()
                value = (before * mass + value * weight) / (mass + weight)
                weight, many = weight + mass, many + pooled
            levels.append((value, weight, many))
        values = [value for value, _, many in levels for _ in range(many)] or [0.5]
        found, place = [], 0
        for of in self.total:
            place += of > 0
            found.append(values[max(0, place - 1)])
        return tuple(found)

    def confidence(self, margins: Tensor) -> Tensor:
        """The calibrated probability that predictions with these margins are right."""
        table = torch.tensor(self.table(), dtype=torch.float64, device=margins.device)
        return table[bins(margins)]

    def threshold(self, share: float = SHARE) -> float:
        """The margin below which a device abstains, to do so on this share of its samples."""
        place, fraction = self._cut(share)
        return WIDTH * (place + fraction)

    def promised(self, share: float = SHARE) -> tuple[float, float]:
        """Accuracy of all, and of those that are answered if this share is not; NaN of none."""
        place, fraction = self._cut(share)
        total, correct = (
            (1 - fraction) * each[place] + sum(each[place + 1 :])
            for each in (self.total, self.correct)
        )
        return _ratio(sum(self.correct), self.samples), _ratio(correct, total)

    def _cut(self, share: float) -> tuple[int, float]:
        """The bin that the threshold lies in, and at what fraction of its width."""
        require(0 <= share < 1, "abstain", share, "a share of at least 0 and below 1")
        wanted, below = min(share * (self.samples + 1), float(self.samples)), 0
        if wanted == 0:
            return 0, 0.0
        for place, of in enumerate(self.total[:-1]):
            if below + of >= wanted:
                return place, (wanted - below) / of
            below += of
        return BINS - 1, 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
