"""How sure an answer is, and when to give none: fedmeta's own rule (`fedmeta.core.calibration`).

Source nodes have counted, by the margin m = z₁ − z₂ between the two largest logits in bins of one
width, how many query samples fell in each bin and how many of them were right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmeta_edge.errors import EdgeError

Numbers = npt.NDArray[np.float64]

WIDTH = 0.25
BINS = 64
SHARE = 0.1


def margins(logits: npt.NDArray[Any]) -> Numbers:
    """The largest logit minus the second largest, (n, classes) → (n,).

    Example:
        >>> margins(np.array([[1.0, 3.0, 2.5], [0.0, 0.0, -1.0]]))
        array([0.5, 0. ])
    """
    first = np.partition(logits, -2, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):  # ∞ − ∞ is no number, and counts as unsure
        return np.asarray(first[:, 1] - first[:, 0], np.float64)


@dataclass(frozen=True)
class Calibration:
    """What the source nodes counted.

    Args:
        total: query samples of every bin.
        correct: how many of them were right.
        folds: of cross-fitting, by which nodes count under models that have not seen them; 0: the
            model was trained on these very nodes, and they flatter it.
        decides: whether these nodes decided how to adapt, as `adapt_if_it_helps` does.

    Example:
        >>> found = Calibration((4, 4, *[0] * 62), (2, 4, *[0] * 62))
        >>> found.confidence(np.array([0.1, 0.3, 9.0])).round(3)
        array([0.5  , 0.833, 0.833])
        >>> round(found.threshold(0.25), 4)
        0.1406
    """

    total: tuple[int, ...]
    correct: tuple[int, ...]
    folds: int = 0
    decides: bool = False

    @property
    def makes_sense(self) -> bool:
        """Whether these are counts, as many as there are bins."""
        pairs = list(zip(self.total, self.correct, strict=False))
        whole = all(isinstance(n, int) and n < 2**53 for pair in pairs for n in pair)
        sizes = len(self.total) == len(self.correct) == BINS
        kind = isinstance(self.folds, int) and self.folds >= 0 and isinstance(self.decides, bool)
        return sizes and whole and kind and all(0 <= right <= of for of, right in pairs)

    def table(self) -> Numbers:
        """The probability of being right, bin by bin; 1/2 where nothing was counted."""
        total, correct = np.array(self.total), np.array(self.correct)
        known = np.flatnonzero(total)
        if len(known) == 0:
            return np.full(BINS, 0.5)
        values, weights = ((correct + 1) / (total + 2))[known], total[known]
        levels: list[tuple[float, int, int]] = []  # value, weight, bins
        for one, mass in zip(values.tolist(), weights.tolist(), strict=True):
            value, weight, many = one, mass, 1
            while levels and levels[-1][0] > value:
                before, pooled, bins = levels.pop()
                value = (before * pooled + value * weight) / (pooled + weight)
                weight, many = weight + pooled, many + bins
            levels.append((value, weight, many))
        pooled_values = np.concatenate([np.full(many, value) for value, _, many in levels])
        places = np.searchsorted(known, np.arange(BINS), side="right") - 1
        return np.asarray(pooled_values[places.clip(min=0)])

    def confidence(self, margins: Numbers) -> Numbers:
        """The probability that answers with these margins are right."""
        places = np.nan_to_num(np.asarray(margins) / WIDTH, nan=0.0, posinf=BINS)
        return self.table()[places.clip(0, BINS - 1).astype(np.int64)]

    def threshold(self, share: float = SHARE) -> float:
        """The margin below which to abstain, to do so on this share of the samples."""
        if not 0 <= share < 1:
            raise EdgeError(f"abstain is {share}", "give a share of at least 0 and below 1")
        samples = sum(self.total)
        wanted, below = min(share * (samples + 1), float(samples)), 0
        if wanted == 0:
            return 0.0
        for place, of in enumerate(self.total[:-1]):
            if below + of >= wanted:
                return WIDTH * (place + (wanted - below) / of)
            below += of
        return WIDTH * (BINS - 1)
