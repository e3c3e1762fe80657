"""A platform that undoes local noise: it works against a generator with an inverse, and not now.

Inputs that never change have no gradient, so those numbers of an upload are pure noise, and the
scaling statistics say which they are. Noise used to be made from them by `randomness`: number n of
a leaf was Φ⁻¹ of the mixed counter k + n·golden, whose mixer is a bijection of 64 bits. The noise
that is closest to zero is the one whose float has most bits of its mixed counter to tell, since the
steps of floats are finest there: of some ten thousand numbers about forty bits of 64. The others
are tried out; each candidate is mixed back to k and must explain the other numbers. From k follows
the node's key, and from that the noise of all numbers, in seconds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core import randomness
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, Node
from fedmeta.data.federation import Task
from fedmeta.models.networks import ModelSettings
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink
from problems import job_of

pytest.importorskip("cryptography")

FEATURES, CONSTANT, HIDDEN = 200, 180, 400
NOISE, CLIP = 0.6, 1.0
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
Words = np.ndarray[Any, np.dtype[np.uint64]]


def federation() -> Federation:
    """One node with some inputs that never change."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(24, FEATURES)).astype(np.float32)
    inputs[:, :CONSTANT] = 3.0
    labels = rng.integers(0, 2, 24)
    node = Node("only", "source", np.arange(12), np.arange(12, 24))
    return Federation(inputs, labels, Task("classification", 2, ("a", "b")), [node])


def upload(noise: float) -> Tree:
    """What the node sends in its first round."""
    job = job_of(
        federation(),
        ModelSettings("mlp", hidden=(HIDDEN,)),
        ADMMFedMeta(Adaptation(step_size=0.01), penalty=1.0, resplit="none"),
        TrainingSettings(rounds=1),
        uplink=Uplink(privacy=Privacy("local", noise=noise, clip=CLIP)),
        execution=Execution(threads=1, path="batched"),
    )
    engine = job.engine()
    state, nodes = engine.start(job.model.theta)
    return engine.contributed(job.algorithm.broadcast(state), nodes, 1).update


def old_noise(update: Tree, deviation: float, key: Tensor) -> Tree:
    """Noise as it was drawn before: a copy of what `uplink.privacy` had."""
    return {
        name: leaf
        + deviation
        * randomness.normal(randomness.fold(key, place), leaf.numel())
        .reshape(leaf.shape)
        .to(leaf.dtype)
        for place, (name, leaf) in enumerate(update.items())
    }


class Seen(NamedTuple):
    """What the platform has: an upload, and which numbers of its first leaf are pure noise."""

    update: Tree
    pure: np.ndarray[Any, Any]
    deviation: float


def seen(update: Tree) -> Seen:
    first = next(iter(update.values()))
    assert first.shape == (HIDDEN, FEATURES)
    columns = np.arange(first.numel()).reshape(first.shape)[:, :CONSTANT]
    return Seen(update, columns.reshape(-1), 2 * NOISE * CLIP)


def unmixed(z: Words) -> Words:
    """The inverse of the mixer."""

    def unshifted(z: Words, bits: int) -> Words:
        found = z
        for _ in range(64 // bits):
            found = z ^ (found >> np.uint64(bits))
        return found

    z = unshifted(z, 31) * np.uint64(pow(SECOND, -1, 1 << 64))
    z = unshifted(z, 27) * np.uint64(pow(FIRST, -1, 1 << 64))
    return unshifted(z, 30) - np.uint64(GOLDEN)


def recovered(seen: Seen) -> Tree | None:
    """The upload without its noise, if the noise can be undone."""
    values = next(iter(seen.update.values())).reshape(-1).double().numpy() / seen.deviation
    pure = seen.pure[np.argsort(np.abs(values[seen.pure]))]
    place, value = pure[0], values[pure[0]]
    # Two roundings to float32 lie between the number and its noise.
    ends = [0.5 * math.erfc(-value * (1 + off) / math.sqrt(2)) for off in (-(2**-23), 2**-23)]
    low, high = (int(end * 2.0**53) for end in sorted(ends))
    tops = np.arange(low - 1, high + 2, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for bits in range(1 << 11):  # those that the conversion to a float has cut off
            mixed = (tops << np.uint64(11)) | np.uint64(bits)
            keys = unmixed(mixed) - np.uint64((int(place) + 1) * GOLDEN % 2**64)
            for other in pure[1:6]:
                counters = keys + np.uint64((int(other) + 1) * GOLDEN % 2**64)
                keys = keys[np.abs(noise_of(counters) - values[other]) < 1e-5]
            if len(keys):
                key = int(unmixed(unmixed(keys[:1]) ^ np.uint64(0))[0])  # of the first leaf
                drawn = old_noise(
                    {name: torch.zeros_like(leaf) for name, leaf in seen.update.items()},
                    seen.deviation,
                    torch.tensor(key - (1 << 64) * (key >> 63)),
                )
                return {name: leaf - drawn[name] for name, leaf in seen.update.items()}
    return None


def noise_of(counters: Words) -> np.ndarray[Any, Any]:
    """The normal numbers of counters."""
    z = counters + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    u = torch.from_numpy(((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53)
    return np.asarray(torch.erfinv(2 * u - 1) * math.sqrt(2))


def cosine(one: Tree, other: Tree) -> float:
    a, b = (torch.cat([x.reshape(-1).double() for x in t.values()]) for t in (one, other))
    return float(a @ b / (a.norm() * b.norm()))


def test_old_noise_could_be_undone() -> None:
    clean = upload(noise=0.0)
    at = seen(clean)
    assert not bool(next(iter(clean.values())).reshape(-1)[at.pure].any())  # no gradient there
    secret = torch.tensor(-0x1234_5678_9ABC_DEF1)  # any 64 bits
    noisy = old_noise(clean, at.deviation, secret)
    assert abs(cosine(noisy, clean)) < 0.05
    found = recovered(seen(noisy))
    assert found is not None
    assert cosine(found, clean) > 0.9999


def test_noise_of_today_cannot() -> None:
    clean, noisy = upload(noise=0.0), upload(noise=NOISE)
    at = seen(noisy)
    pure = next(iter(noisy.values())).reshape(-1)[torch.from_numpy(at.pure)]
    assert float(pure.std()) == pytest.approx(at.deviation, rel=0.02)
    assert recovered(at) is None
    assert abs(cosine(noisy, clean)) < 0.05
    # Nor does the seed of the run say anything of it.
    again = upload(noise=NOISE)
    assert abs(cosine(noisy, again)) < 0.05
