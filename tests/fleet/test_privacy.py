"""Clipping, noise, and what an accountant says of them."""

from __future__ import annotations

import math

import pytest
import torch

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.uplink.privacy import Exposure, Privacy, calibrated, noised, spent


def contribution(length: float) -> Contribution:
    update = {"a": torch.tensor([0.6 * length]), "b": torch.tensor([0.8 * length])}
    return Contribution(update, torch.tensor(0.3), {"meta_loss": torch.tensor(1.0)})


def length(update: tree.Tree) -> float:
    return float(tree.squared_norm(update).sqrt())


@pytest.mark.parametrize("weight", [0.01, 0.5])
def test_a_node_sends_at_most_clip_times_weight(weight: float) -> None:
    privacy, key = Privacy("central", noise=0.0, clip=2.0), randomness.key(0)
    long = privacy.at_node(contribution(100.0), torch.tensor(weight), key)
    short = privacy.at_node(contribution(weight), torch.tensor(weight), key)
    assert length(long.update) == pytest.approx(2.0 * weight)
    assert length(short.update) == pytest.approx(weight)  # below the bound: as it was
    assert long.metrics == {}  # a loss is data of the node, too
    assert long.weight == contribution(1.0).weight


def test_noise_has_the_deviation_it_should_have() -> None:
    zero = {"a": torch.zeros(20_000), "b": torch.zeros(100, 100)}
    drawn = noised(zero, 3.0, randomness.key(1))
    for leaf in drawn.values():
        assert float(leaf.mean()) == pytest.approx(0, abs=5 * 3 / leaf.numel() ** 0.5)
        assert float(leaf.std()) == pytest.approx(3, rel=5 / (2 * leaf.numel()) ** 0.5)
    assert not torch.equal(drawn["a"][:100], drawn["b"].reshape(-1)[:100])
    again = noised(zero, 3.0, randomness.key(1))
    assert torch.equal(drawn["a"], again["a"])


def test_local_noise_is_at_the_node_and_central_noise_at_the_sum() -> None:
    weight, key = torch.tensor(0.1), randomness.key(5)
    many = {"a": torch.zeros(10_000)}
    none = Contribution(many, weight, {})
    local, central = Privacy("local", noise=1.5, clip=2.0), Privacy("central", noise=1.5, clip=2.0)
    expected = torch.tensor(0.7)

    def deviation(one: Contribution) -> float:
        return float(one.update["a"].std())

    at_node = local.at_node(none, weight, key)
    assert deviation(at_node) == pytest.approx(2 * 1.5 * 2.0 * 0.1, rel=0.05)
    assert local.at_platform(none, weight, expected, key) is none
    assert deviation(central.at_node(none, weight, key)) == 0
    released = central.at_platform(none, weight, expected, key)
    assert deviation(released) == pytest.approx(1.5 * 2.0 * 0.1, rel=0.05)
    assert released.weight == expected


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
        ({"dp": "local", "epsilon": 1.0}, "no ε holds"),
        ({"dp": "local", "noise": -1.0}, "noise"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, float], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        Privacy(**settings)  # type: ignore[arg-type]
