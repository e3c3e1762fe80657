"""The discrete Gaussian: noise in whole numbers, drawn without a rounding error.

    P(n) ∝ exp(−n² / 2σ²),   n = …, −1, 0, 1, …

Why not rounded floating-point numbers: a sum v + n of floats shows in its last bits which v it was
made of, since only some floats can come out of log, erfinv and a multiplication (Mironov, CCS
2012). Whole numbers have no such bits: n may be any of them, whatever v, and v + n is exact.

The discrete Gaussian of σ keeps the Rényi differential privacy of the continuous one of the same σ,
at every order, for vectors of whole numbers (Canonne, Kamath and Steinke, theorem 14); where nodes
are sampled, at every whole order: there the moments are sums of Σ_n exp(−(n−a)²/2σ²) with whole a,
each equal to that of a = 0, which leaves the formula of the continuous one.

How it is drawn (k = 2^m with σ/k between 4 and 8):

    x ≥ 0 with P(x) ∝ exp(−x²k²/2σ²), by inverting a table;  y uniform in 0 … k − 1;  a sign
    ±(kx + y) is kept with probability exp(−y(y + 2kx) / 2σ²), and −0 never

A comparison of random bits with a probability is made in 64 bits where these decide, and in 192
where they do not. So a draw is within 2⁻¹⁸⁰ of the distribution above, which adds less than 10⁻⁴⁰
to δ in any run. Noise is drawn before any data is looked at: how long it takes says nothing of it.

References: Canonne, Kamath, Steinke: The Discrete Gaussian for Differential Privacy, NeurIPS 2020.
Mironov: On Significance of the Least Significant Bits for Differential Privacy, CCS 2012. The split
into x and y: Ducas, Durmus, Lepoint, Lyubashevsky: Lattice Signatures and Bimodal Gaussians, 2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property, lru_cache
from math import floor, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmeta.core.errors import require
from fedmeta.core.secret_random import SecretRandom, Words

Whole = NDArray[np.int64]

_BITS = 192  # of a comparison that 64 do not decide
_DIGITS = 80  # decimal ones, in which probabilities are computed: more than _BITS have
_UNSURE = 2.0**-45  # far above what float64 can be off by in exp(−t), t < 2
_LARGEST = 2.0**44  # σ; 16 of them fit into a float64's whole numbers
_BLOCK = 1 << 16  # numbers drawn at a time: they stay in the cache


class _Table(NamedTuple):
    """P(X ≤ x) for x = 0, 1, …: the first 64 bits, and the others."""

    first: Words
    rest: tuple[int, ...]


@dataclass(frozen=True)
class DiscreteGaussian:
    """The distribution.

    Args:
        deviation: σ (that of the numbers drawn is the same to 10⁻³⁰ from σ = 2 on).

    Example:
        >>> DiscreteGaussian(1000.0).draw(3, SecretRandom(bytes(32))).tolist()
        [-700, -697, -1091]
    """

    deviation: float

    def __post_init__(self) -> None:
        fits = 0 < self.deviation <= _LARGEST
        require(fits, "deviation", self.deviation, "a number above 0 and at most 2⁴⁴")

    @cached_property
    def _power(self) -> int:
        """m."""
        return max(0, floor(log2(self.deviation)) - 2)

    def draw(self, count: int, source: SecretRandom) -> Whole:
        """Independent numbers of it."""
        drawn = np.empty(count, np.int64)
        done = 0
        while done < count:
            some = self._accepted(min(_BLOCK, count - done + 64), source)
            here = some[: count - done]
            drawn[done : done + len(here)] = here
            done += len(here)
        return drawn

    def _accepted(self, count: int, source: SecretRandom) -> Whole:
        """What is left of some proposals."""
        table, power = _table(self.deviation, self._power), self._power
        words = source.words(3 * count)
        which, where, chance = words[:count], words[count : 2 * count], words[2 * count :]
        x = np.searchsorted(table.first, which)
        for tie in np.flatnonzero(table.first[x] == which):
            x[tie] += int(source.whole(_BITS - 64) >= table.rest[x[tie]])
        y = (where & np.uint64((1 << power) - 1)).astype(np.int64)
        negative = (where >> np.uint64(63)).astype(bool)
        part = y * 2.0**-power  # y/k, exact
        small = self.deviation * 2.0**-power
        likely = np.exp(part * (part + 2.0 * x) * (-0.5 / small**2))
        chances = chance * 2.0**-64
        keep = chances < likely
        for place in np.flatnonzero(np.abs(chances - likely) < _UNSURE):
            more = (int(chance[place]) << (_BITS - 64)) + source.whole(_BITS - 64)
            keep[place] = more < self._likely(int(x[place]), int(y[place]))
        size = (x << power) + y
        keep &= ~(negative & (size == 0))
        kept: Whole = np.where(negative, -size, size)[keep]
        return kept

    def _likely(self, x: int, y: int) -> int:
        """exp(−y(y + 2kx) / 2σ²) in units of 2^−192."""
        with localcontext(prec=_DIGITS):
            twice = 2 * Decimal(self.deviation) ** 2
            chance = (-Decimal(y * (y + (2 * x << self._power))) / twice).exp()
            return int(chance * (1 << _BITS))


@lru_cache(maxsize=16)
def _table(deviation: float, power: int) -> _Table:
    """The distribution function of x."""
    with localcontext(prec=_DIGITS):
        small = Decimal(deviation) / (1 << power)
        step = (-1 / (2 * small**2)).exp()
        weight, ratio, sums = Decimal(1), step, [Decimal(1)]
        while weight > Decimal(2) ** -(_BITS + 8):  # what is beyond is less than a unit
            weight, ratio = weight * ratio, ratio * step * step
            sums.append(sums[-1] + weight)
        whole = [int(each / sums[-1] * (1 << _BITS)) for each in sums[:-1]]
    lower = (1 << (_BITS - 64)) - 1
    first = np.array([each >> (_BITS - 64) for each in whole], np.uint64)
    top = np.uint64(2**64 - 1)
    return _Table(np.append(first, top), (*(each & lower for each in whole), lower + 1))
