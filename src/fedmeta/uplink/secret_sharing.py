"""Secrets in shares: any `threshold` of them give the secret, fewer say nothing at all of it.

The secret is the value at 0 of a random polynomial of degree threshold − 1 over the numbers modulo
the prime 2⁵²¹ − 1, a share its value elsewhere.

Reference: Shamir: How to Share a Secret, CACM 1979.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache

PRIME = 2**521 - 1
SHARE_BYTES = 66


def split(secret: bytes, threshold: int, places: Iterable[int]) -> dict[int, int]:
    """A share for every place (a number above 0) of a secret of at most 64 bytes.

    Example:
        >>> shares = split(b"secret", 3, range(1, 6))
        >>> join({place: shares[place] for place in (1, 4, 5)}, 6)
        b'secret'
    """
    rest = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = {}
    for place in places:
        value = 0
        for coefficient in (*rest, int.from_bytes(secret, "big")):
            value = (value * place + coefficient) % PRIME
        shares[place] = value
    return shares


def join(shares: Mapping[int, int], length: int) -> bytes:
    """The secret of that many bytes; with a wrong share, or too few, something else."""
    factors = _factors(tuple(sorted(shares)))
    value = sum(factors[place] * share for place, share in shares.items()) % PRIME
    return (value % (1 << 8 * length)).to_bytes(length, "big")


@lru_cache(maxsize=32)
def _factors(places: tuple[int, ...]) -> dict[int, int]:
    """What the values at these places are multiplied by to add up to that at 0 (Lagrange)."""
    factors = {}
    for one in places:
        above, below = 1, 1
        for other in places:
            if other != one:
                above, below = above * other % PRIME, below * (other - one) % PRIME
        factors[one] = above * pow(below, -1, PRIME) % PRIME
    return factors
