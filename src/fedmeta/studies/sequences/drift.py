"""Where a stream of data has changed, found by the platform from sums of losses.

Before a segment of the stream is learned, every source adapts the model as it stands to it and
tells three numbers to be added up: 1, its loss, and the square of that. So a loss is always of
samples that the model has not learned from. With the mean m of a segment, its squared error e² and
the mean r ± d of the segments since the last border,

    z = (m − r) / √(e² + d²)        S ← max(0, S + z − 1)        border where S > 4,

Page's cumulative sum: one large jump is a border, and so are several small ones, as a gradual drift
leaves them. What stands at a border is what earlier tasks have taught: the model before it becomes
the prior. The segment at a border is no reference for those behind it, as its loss is that of a
model that did not know it. Nothing grows with the stream.

Page, Continuous inspection schemes, Biometrika 1954.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

_SLACK, _ALARM = 1.0, 4.0  # no false border in 300 calm streams of 20 segments, 10 nodes


@dataclass(frozen=True)
class LossSums:
    """What sources tell of a segment, added up.

    Args:
        nodes: how many have told.
        loss: Σ of their losses.
        squares: Σ of their squares.

    Example:
        >>> LossSums.of([1.0, 3.0])
        LossSums(nodes=2, loss=4.0, squares=10.0)
    """

    nodes: int = 0
    loss: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, losses: Iterable[float]) -> LossSums:
        """Of some nodes."""
        total = cls()
        for each in losses:
            total += cls(1, each, each * each)
        return total

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.nodes + other.nodes, self.loss + other.loss, self.squares + other.squares
        )

    @property
    def mean(self) -> float:
        """Over nodes."""
        return self.loss / self.nodes

    @property
    def squared_error(self) -> float:
        """Of the mean."""
        variance = max(0.0, self.squares - self.nodes * self.mean**2) / max(1, self.nodes - 1)
        return variance / self.nodes


@dataclass(frozen=True)
class Watch:
    """What the platform remembers of the stream.

    Args:
        reference: sums of the segments since the last border, but for the one at it.
        score: S.
        begun: whether there was a segment yet.

    Example:
        >>> calm, jump = LossSums.of([0.9, 1.0, 1.1]), LossSums.of([2.0, 2.1, 2.2])
        >>> watch, found = Watch(), []
        >>> for told in (calm, calm, calm, jump, calm):
        ...     watch, border = watch.after(told)
        ...     found.append(border)
        >>> found
        [False, False, False, True, False]
    """

    reference: LossSums = LossSums()
    score: float = 0.0
    begun: bool = False

    def after(self, told: LossSums) -> tuple[Watch, bool]:
        """The watch one segment further, and whether that is a border."""
        if not self.begun:  # the first one meets a model that knows nothing
            return replace(self, begun=True), False
        if self.reference.nodes == 0:
            return replace(self, reference=told), False
        error = math.sqrt(told.squared_error + self.reference.squared_error)
        risen = told.mean - self.reference.mean
        z = risen / error if error > 0 else math.copysign(math.inf, risen) if risen else 0.0
        score = max(0.0, self.score + z - _SLACK)
        if score > _ALARM:
            return Watch(begun=True), True
        return replace(self, reference=self.reference + told, score=score), False
