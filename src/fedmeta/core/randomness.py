"""Random numbers as a function of a key: no generator, no state, nothing to save.

A key is an int64 tensor. `fold` derives a new key from a key and any number (a round, a node,
a step), `uniform` turns one into numbers. The n-th number depends on the key and n alone, so a
draw is the same whatever the chunk size, the execution path, the padding or the machine, it
works under `torch.func.vmap`, and a resumed run draws what an uninterrupted one would have.

The mixer is splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def key(seed: int) -> Tensor:
    """The root key of a seed."""
    return _mix(torch.tensor(seed, dtype=torch.int64))


def name_key(name: str) -> int:
    """A number for a name, the same on every machine: a node's own random stream."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def fold(parent: Tensor, value: Tensor | int) -> Tensor:
    """The child key of `parent` for `value`.

    Example:
        >>> bool(fold(key(0), 1) == fold(key(0), 1)), bool(fold(key(0), 1) == fold(key(0), 2))
        (True, False)
    """
    return _mix(_mix(parent) ^ value)


def uniform(source: Tensor, count: int) -> Tensor:
    """`count` independent float64 numbers in [0, 1).

    Example:
        >>> bool((uniform(key(7), 5)[:3] == uniform(key(7), 3)).all())
        True
    """
    counters = torch.arange(1, count + 1, dtype=torch.int64, device=source.device)
    bits = _mix(source + counters * _GOLDEN)
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def normal(source: Tensor, count: int) -> Tensor:
    """`count` standard normal numbers (by the inverse distribution; none is beyond 8.3).

    Example:
        >>> bool((normal(key(7), 5)[:3] == normal(key(7), 3)).all())
        True
    """
    u = uniform(source, count).clamp(min=2.0**-54)  # never 0, of which the inverse is −∞
    return torch.erfinv(2 * u - 1) * math.sqrt(2)


def truncated_normal(source: Tensor, count: int) -> Tensor:
    """`count` standard normal numbers cut off at two deviations (by the inverse distribution)."""
    low = 0.022750131948179212  # Φ(−2): the mass left of the cut
    u = low + (1 - 2 * low) * uniform(source, count)
    return torch.erfinv(2 * u - 1) * math.sqrt(2)


def _mix(state: Tensor) -> Tensor:
    z = state + _GOLDEN
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right (torch's is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
