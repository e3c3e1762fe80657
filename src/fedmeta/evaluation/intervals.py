"""Mean and 95 % interval of a few repeats, by Student's distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FEWEST = 3
"""Repeats below which a study gives no interval: that of two is twelve deviations wide."""


class Interval(NamedTuple):
    """Mean ± half width; the half width is None for too few values."""

    mean: float
    half_width: float | None

    def __str__(self) -> str:
        width = "" if self.half_width is None else f" ± {self.half_width:.4g}"
        return f"{self.mean:.4g}{width}"


def interval(values: Sequence[float], fewest: int = 2) -> Interval:
    """The mean of repeats and the half width of its 95 % interval.

    Args:
        values: of the repeats.
        fewest: below which there is no interval, at least 2.

    Example:
        >>> print(interval([1.0, 2.0, 3.0]))  # 4.3027 · 1 / √3
        2 ± 2.484
    """
    mean = float(np.mean(values))
    if len(values) < fewest:
        return Interval(mean, None)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, student_quantile(len(values) - 1) * error)


def student_quantile(degrees: int, tail: float = 0.025) -> float:
    """The quantile of Student's distribution that is exceeded with probability `tail`.

    By bisection on its integral.

    Args:
        degrees: of freedom, at least 1.
        tail: from 0 to 0.5, both excluded.

    Example:
        >>> round(student_quantile(9), 4)
        2.2622
        >>> round(student_quantile(9, 0.005), 4)
        3.2498
    """
    log_norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    norm = math.exp(log_norm) / math.sqrt(degrees * math.pi)

    def mass(limit: float) -> float:
        """P(0 < T < limit). With t = √ν·tan(u) the integrand is cos(u)^(ν−1), smooth and finite."""
        grid = np.linspace(0.0, math.atan(limit / math.sqrt(degrees)), 2001)
        values = np.cos(grid) ** (degrees - 1)
        step = grid[1]
        simpson = values[0] + values[-1] + 4 * values[1:-1:2].sum() + 2 * values[2:-1:2].sum()
        return float(norm * math.sqrt(degrees) * step / 3 * simpson)

    low, high = 0.0, 20.0
    while mass(high) < 0.5 - tail:
        high *= 2
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < 0.5 - tail else (low, middle)
    return (low + high) / 2
