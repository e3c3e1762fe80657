"""Which samples a step looks at where a model adapts with mini-batches: fedmeta's own draws.

Random numbers are a function of a key, by splitmix64 (Steele, Lea and Flood, OOPSLA 2014), so a
device draws what PyTorch would with the same seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_PURPOSE = 3  # what fedmeta folds into a key for mini-batches


def batch_mask(
    count: int,
    size: int | None,
    seed: int,
    step: int,
    present: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.float32]:
    """1 for the samples of a step, 0 for the others.

    Args:
        count: how many samples there are.
        size: of a batch; None: all.
        seed: of the draws.
        step: counted from 0.
        present: which samples there are; None: all.

    Example:
        >>> batch_mask(5, 2, seed=0, step=0).sum(), batch_mask(5, None, seed=0, step=0).sum()
        (np.float32(2.0), np.float32(5.0))
    """
    there = np.ones(count, np.bool_) if present is None else present
    if size is None or size >= count:
        return there.astype(np.float32)
    key = _fold(_fold(_mix(np.array([seed], np.uint64)), _PURPOSE), step)
    counters = np.arange(1, count + 1, dtype=np.uint64)
    draws = (_mix(key + counters * _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    mask = np.zeros(count, np.float32)
    mask[np.argsort(draws + ~there, kind="stable")[:size]] = 1
    return mask * there


def _fold(parent: Numbers, value: int) -> Numbers:
    return _mix(_mix(parent) ^ np.uint64(value))


def _mix(state: Numbers) -> Numbers:
    z = state + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
