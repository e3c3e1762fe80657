"""Clipping, noise, and what an accountant says of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.secret_random import SecretRandom
from fedmeta.uplink.privacy import Exposure, Privacy, calibrated, spent

Array = np.ndarray[Any, Any]


def contribution(length: float) -> Contribution:
    update = {"a": torch.tensor([0.6 * length]), "b": torch.tensor([0.8 * length])}
    return Contribution(update, torch.tensor(0.3), {"meta_loss": torch.tensor(1.0)})


def length(update: tree.Tree) -> float:
    return float(tree.squared_norm(update).sqrt())


NO_NOISE = torch.zeros(0, dtype=torch.float64)


@pytest.mark.parametrize("weight", [0.01, 0.5])
def test_a_node_sends_at_most_clip_times_weight(weight: float) -> None:
    privacy = Privacy("central", noise=0.0, clip=2.0)
    long = privacy.at_node(contribution(100.0), torch.tensor(weight), NO_NOISE)
    short = privacy.at_node(contribution(weight), torch.tensor(weight), NO_NOISE)
    assert length(long.update) == pytest.approx(2.0 * weight, rel=2e-6)
    assert length(short.update) == pytest.approx(weight)  # below the bound: as it was
    assert long.metrics == {}  # a loss is data of the node, too
    assert long.weight == contribution(1.0).weight


@pytest.mark.parametrize("clip", [0.1, 1.0, 3.7])
@pytest.mark.parametrize("dp", ["local", "central"])
def test_steps_of_the_noise_never_lengthen_a_vector(dp: str, clip: float) -> None:
    pytest.importorskip("cryptography")
    privacy = Privacy(dp, noise=3.3, clip=clip)  # type: ignore[arg-type]
    for seed in range(20):
        weight = torch.tensor(0.37 / (seed + 1))
        drawn = randomness.normal(randomness.key(seed), 1000).float() * 10.0 ** (seed % 5 - 3)
        zero = torch.zeros(1000, dtype=torch.float64)
        one = privacy.at_node(Contribution({"a": drawn}, weight, {}), weight, zero).update["a"]
        unit = privacy.step * (float(weight) if dp == "local" else 1.0)
        whole = (one.double() / unit).round()
        if dp == "central":  # what is summed up is exact
            assert one.dtype == torch.float64
            assert torch.equal(whole * unit, one)
        exact = sum(int(number) ** 2 for number in whole.tolist())
        bound = (clip * float(weight) / unit) ** 2
        assert exact <= bound * (1 + (1e-6 if dp == "local" else 0.0))  # local: sent as float32
        assert whole.abs().max() < 2**42


def test_the_sum_under_central_is_exact_in_any_order() -> None:
    privacy = Privacy("central", noise=2.0, clip=0.3)
    parts = []
    for seed in range(50):
        weight = torch.tensor(0.02)
        drawn = randomness.normal(randomness.key(seed), 100).float()
        node = privacy.at_node(Contribution({"a": drawn}, weight, {}), weight, NO_NOISE)
        parts.append(node.update["a"])
    forward, backward = sum(parts), sum(reversed(parts))
    assert isinstance(forward, torch.Tensor)
    assert torch.equal(forward, backward)
    without = sum(parts[1:])
    assert torch.equal(forward - without, parts[0])  # so a node changes it by its own part


def test_local_noise_is_at_the_node_and_central_noise_at_the_sum() -> None:
    pytest.importorskip("cryptography")
    weight, source = torch.tensor(0.1), SecretRandom(bytes(32))
    many = {"a": torch.zeros(10_000)}
    none = Contribution(many, weight, {})
    local, central = Privacy("local", noise=1.5, clip=2.0), Privacy("central", noise=1.5, clip=2.0)
    expected = torch.tensor(0.7)

    def deviation(one: Contribution) -> float:
        return float(one.update["a"].std())

    noise = local.noise_of_nodes(3, 10_000, source)
    assert noise.shape == (3, 10_000)
    at_node = local.at_node(none, weight, noise[1])
    assert deviation(at_node) == pytest.approx(2 * 1.5 * 2.0 * 0.1, rel=0.05)
    assert local.at_platform(none, weight, expected, source) is none
    assert central.noise_of_nodes(3, 10_000, source).shape == (3, 0)
    assert deviation(central.at_node(none, weight, noise[0][:0])) == 0
    released = central.at_platform(none, weight, expected, source)
    assert deviation(released) == pytest.approx(1.5 * 2.0 * 0.1, rel=0.05)
    assert released.update["a"].dtype == weight.dtype
    assert released.weight == expected
    again = central.at_platform(none, weight, expected, source)
    assert not torch.equal(again.update["a"], released.update["a"])


def gaussian_delta(epsilon: float, noise: float) -> float:
    """δ of one Gaussian mechanism (Balle and Wang, 2018, theorem 8): an oracle of our own."""
    normal = torch.distributions.Normal(0.0, 1.0)

    def below(x: float) -> float:
        return float(normal.cdf(torch.tensor(x, dtype=torch.float64)))

    return below(0.5 / noise - epsilon * noise) - math.exp(epsilon) * below(
        -0.5 / noise - epsilon * noise
    )


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (5.0, 1), (10.0, 100)])
def test_what_the_accountant_says_is_true_and_not_far_off(noise: float, rounds: int) -> None:
    pytest.importorskip("dp_accounting")
    privacy = Privacy("central", noise=noise, delta=1e-5)
    epsilon = spent(privacy, Exposure(rounds))
    together = noise / rounds**0.5  # Gaussian mechanisms compose to one
    assert gaussian_delta(epsilon, together) <= 1e-5
    assert gaussian_delta(0.85 * epsilon, together) > 1e-5


def composed_delta(losses: Array, masses: Array, rounds: int, epsilon: float) -> float:
    """δ(ε) of a mechanism used several times, from its privacy loss distribution.

    Losses are rounded up to a grid, so that δ is an upper bound; distributions of sums are powers
    of a Fourier transform. Nothing of it is shared with the accountant.
    """
    step = 2e-4 if rounds > 1 else 1e-4
    low, high = -60.0, 60.0
    size = round((high - low) / step)
    cells = np.ceil(losses / step).astype(np.int64) % size
    one = np.bincount(cells, weights=masses, minlength=size)
    total = np.fft.irfft(np.fft.rfft(one) ** rounds, size)
    at = np.arange(size) * step
    at = np.where(at >= high, at - (high - low), at)
    above = at > epsilon
    return float((total[above] * -np.expm1(epsilon - at[above])).sum())


def discrete(noise: float, chance: float) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Privacy losses of one round and their masses, with a node and without, both ways round.

    The noise is a discrete Gaussian, the node's part 64 steps long: coarser than in any run.
    """
    unit = 64
    deviation = noise * unit
    numbers = np.arange(-int(30 * deviation), int(30 * deviation) + 1, dtype=np.float64)
    weights = np.exp(-(numbers**2) / (2 * deviation**2))
    without = weights / weights.sum()
    ratio = np.exp((2 * numbers * unit - unit**2) / (2 * deviation**2))
    loss = np.log1p(chance * (ratio - 1))
    return (loss, without * (1 + chance * (ratio - 1))), (-loss, without)


@pytest.mark.parametrize(
    ("noise", "rounds", "chance"),
    [(1.0, 1, 1.0), (6.4, 100, 1.0), (12.0, 20, 1.0), (1.5, 50, 0.1), (3.0, 200, 0.25)],
)
def test_epsilon_by_another_accountant(noise: float, rounds: int, chance: float) -> None:
    pytest.importorskip("dp_accounting")
    privacy = Privacy("central", noise=noise, delta=1e-5)
    epsilon = spent(privacy, Exposure(rounds, chance))
    both = [
        [composed_delta(*way, rounds, epsilon * part) for way in discrete(noise, chance)]
        for part in (1.0, 0.75)
    ]
    assert max(both[0]) <= 1e-5
    assert max(both[1]) > 1e-5  # and it is not far off


def test_sampling_amplifies_under_central_alone() -> None:
    pytest.importorskip("dp_accounting")
    some, all_ = Exposure(50, chance=0.1), Exposure(50)
    central, local = Privacy("central", noise=2.0), Privacy("local", noise=2.0)
    assert spent(central, some) < 0.25 * spent(central, all_)
    assert spent(local, some) == spent(local, all_) == spent(central, all_)
    assert spent(central, Exposure(100)) > spent(central, all_)


def test_clipping_alone_promises_nothing() -> None:
    assert spent(Privacy("local", noise=0.0), Exposure(10)) == math.inf


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0, 1000.0])
def test_the_noise_found_keeps_epsilon_and_little_less_would_not(epsilon: float) -> None:
    pytest.importorskip("dp_accounting")
    exposure = Exposure(100)
    found = calibrated(Privacy("central", epsilon), exposure)
    assert found.noise is not None
    assert spent(found, exposure) <= epsilon
    less = Privacy("central", noise=0.99 * found.noise)
    assert spent(less, exposure) > epsilon


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"dp": "both", "noise": 1.0}, "dp"),
        ({"dp": "local"}, "neither epsilon nor noise"),
        ({"dp": "local", "epsilon": 1.0, "noise": 1.0}, "epsilon and noise"),
        ({"epsilon": 1.0}, "privacy.dp is 'none'"),
        ({"dp": "local", "epsilon": 0.0}, "epsilon"),
        ({"dp": "local", "epsilon": 1.0, "delta": 0.0}, "delta"),
        ({"dp": "local", "epsilon": 1.0, "clip": -1.0}, "clip"),
        ({"dp": "local", "noise": -1.0}, "noise"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, float], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        Privacy(**settings)  # type: ignore[arg-type]
