"""Random numbers as a function of a key: no generator, no state, nothing to save.

A key is an int64 tensor. `fold` derives a new key from a key and any number (a round, a node,
a step), `uniform` turns one into numbers. The n-th number depends on the key and n alone, so a
draw is the same whatever the chunk size, the execution path, the padding or the machine, it
works under `torch.func.vmap`, and a resumed run draws what an uninterrupted one would have.

The mixer is splitmix64 (Steele, Lea and Flood, OOPSLA 2014). Federations are drawn before any node
has a key: they use numpy's generators, one per purpose and seed (`generator`).

What a draw is for is a number that goes into its key or generator, so that no two draws share a
stream. The tables below hold all of them. A number never changes: another one would change every
run drawn with it.
"""

from __future__ import annotations

import hashlib
import math
from enum import IntEnum, unique

import numpy as np
import torch
from torch import Tensor

from fedmeta.core.errors import require


@unique
class Purpose(IntEnum):
    """What a draw of a run is for. Folded into the key of the run, of a node or of a round."""

    AUGMENTATION = -1  # flips and shifts; dropout layers fold 0, 1, 2, … into the same key
    SUPPORT = 1  # dropout and augmentation of a pass over support samples, by step
    QUERY = 2  # the same over query samples
    BATCH = 3  # which samples are in a mini-batch, by step; known to fedmeta-edge too
    DUAL = 4  # the initial dual variable of ADMM
    RESPLIT = 5  # the new division of a node's samples into support and query set
    STEP_SIZES = 6  # the adaptation that algorithms without meta-gradients learn step sizes from
    RESPLIT_CLASSES = 7  # which classes of a new division get what does not come out even
    RENAME = 8  # the new numbers of classes whose numbers are local to a node
    PERSONAL = 9  # mini-batches and dropout of a model that stays on its node
    TURN = 10  # the positions that classes are turned to, where their numbers are local
    PARTICIPANTS = 11  # which nodes are asked to take part in a round
    LOST_UPLOADS = 12  # which of their uploads are lost
    GENERATED = 13  # the noise that inputs are made from where there are no data
    NODES = 21  # the root of all keys of nodes
    PARTICIPATION = 22  # the root of `PARTICIPANTS` and `LOST_UPLOADS` on one machine
    EDGES = 23  # the same for the edges of a fleet
    ROUNDING = 31  # stochastic rounding in compressed uploads
    NOISE = 32  # noise of differential privacy
    FALSE_UPLOAD = 41  # what a dishonest node of a benchmark sends


@unique
class DiagnosisPurpose(IntEnum):
    """What a draw of a diagnosis is for. Folded into the key of the diagnosis' own seed."""

    DIRECTION = 1  # the direction in which a Hessian is compared with one close by
    NODES = 31  # the nodes whose constants are estimated


@unique
class DataPurpose(IntEnum):
    """What a draw of a federation is for. Part of the seed of a numpy generator."""

    SAMPLES = 1  # which samples a node holds
    ROLES = 2  # which nodes are targets
    SPLIT = 3  # the division of a node's samples into support and query set
    SINUSOID = 4  # the waves of the sinusoid task, and points on them
    PRECISE = 5  # the precise set of a target
    PLATFORM = 6  # the samples that the platform of a task sequence holds
    REPLAY = 7  # which samples of earlier tasks a node keeps
    GLYPHS = 8  # the strokes of invented characters, and of those who draw them


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


def generator(seed: int, purpose: DataPurpose, node: str | None = None) -> np.random.Generator:
    """Numpy's generator for one step of drawing a federation, or for one node in that step.

    Steps do not share a stream, so that another `support_share` leaves it as it was which samples
    a node holds, and another `target_share` leaves both.

    Args:
        seed: of the whole federation.
        purpose: the step.
        node: name of the node, where each draws for itself, whatever others there are.

    Example:
        >>> draws = [generator(0, DataPurpose.ROLES).integers(100) for _ in range(2)]
        >>> draws[0] == draws[1]
        np.True_
    """
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    require(whole and seed >= 0, "seed", seed, "a whole number of at least 0")
    own = [] if node is None else [name_key(node) % 2**64]
    return np.random.default_rng([int(seed), int(purpose), *own])


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
