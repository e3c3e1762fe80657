"""FedEWC, FedLwF and TARGET against numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmeta.algorithms import ALGORITHMS, Algorithm, FedAvg, FedEWC, FedLwF, Target
from fedmeta.algorithms.held_at_nodes import HeldAtNodes
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import Tree
from fedmeta.fleet.plan import check_fleet
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.losses import cross_entropy
from fedmeta.priors import OutputKL, SquaredEuclidean, SquaredMahalanobis

FACTS = Facts(*(torch.tensor(value) for value in (0.5, 0.5, 1.0, 0)), key=torch.tensor(0))
LN3 = math.log(3)


def sent(algorithm: Algorithm, objective: Objective, theta: Tensor, data: NodeData) -> list[float]:
    """θ_i − θ of a node whose weight is ½."""
    found, _ = algorithm.node_step(objective, {"a": theta}, {}, data, FACTS)
    return [2 * each for each in found.update["a"].tolist()]


def one_sample(x: float, y: float | int, padding: bool = False) -> NodeData:
    """A node with a sample in its query set; where there is padding, behind it."""
    width = 1 + padding
    inputs, labels = torch.full((width, 1), x), torch.tensor([y] * width)
    mask = torch.tensor([1.0, 0.0][:width])
    if padding:
        inputs[1] = 77.0
    empty = Samples(inputs[:1], labels[:1], torch.zeros(1))
    return NodeData(empty, Samples(inputs, labels, mask))


def scaled_logits(theta: Tree, x: Tensor, _key: Any = None) -> Tensor:
    """logits = x·a."""
    return x * theta["a"]


def test_fedewc_by_hand() -> None:
    """L = a²/2 at x = 1, y = 0; λF = 6 and θ_p = 0, so a step of 0.1 takes 7/10 of a away."""
    objective = Objective(
        lambda t, x, _key: x * t["a"], lambda out, y: ((out[:, 0] - y) ** 2) / 2, draws=False
    )
    prior = SquaredMahalanobis(2.0, {"a": torch.zeros(1)}, {"a": torch.tensor([1.5])})  # A = ½F
    rule = FedEWC(step_size=0.1, local_steps=2, prior=prior)
    found = sent(rule, objective, torch.ones(1), one_sample(1.0, 0.0))
    assert found == pytest.approx([0.3 * 0.3 - 1.0], abs=1e-6)


EARLIER = {"a": torch.tensor([LN3, 0.0, 5.0])}
CROSS_ENTROPY = Objective(scaled_logits, cross_entropy, draws=False)
STEP = {"step_size": 0.3, "local_steps": 1}


@pytest.mark.parametrize("padding", [False, True])
def test_fedlwf_by_hand(padding: bool) -> None:
    """At θ = 0 cross-entropy's slope is p − e₂ = (⅓, ⅓, −⅔).

    The earlier model says (¾, ¼) of the two classes it knows, θ says (½, ½): the slope of 2·KL is
    (−½, ½, 0).
    """
    prior = OutputKL(2.0, EARLIER, scaled_logits, torch.zeros(1, 1), classes=(0, 1))
    rule = FedLwF(prior=prior, **STEP)
    found = sent(rule, CROSS_ENTROPY, torch.zeros(3), one_sample(1.0, 2, padding))
    assert found == pytest.approx([0.05, -0.25, 0.2], abs=1e-6)


def test_target_by_hand() -> None:
    """The same on an input x̂ = 2 that was generated, where the slope is (−1, 1, 0)."""
    half = {"a": EARLIER["a"] / 2}
    prior = OutputKL(2.0, half, scaled_logits, torch.full((1, 1), 2.0), classes=(0, 1))
    rule = Target(prior=prior, **STEP)
    found = sent(rule, CROSS_ENTROPY, torch.zeros(3), one_sample(1.0, 2))
    assert found == pytest.approx([0.2, -0.4, 0.2], abs=1e-6)


def test_temperature_shrinks_the_pull_as_it_says() -> None:
    """Of logits z/T the slope is (p − q)/T."""
    prior = OutputKL(1.0, EARLIER, scaled_logits, torch.ones(1, 1), 2.0, (0, 1))
    q = math.sqrt(3) / (math.sqrt(3) + 1)
    assert prior.gradient({"a": torch.zeros(3)})["a"].tolist() == pytest.approx(
        [(0.5 - q) / 2, (q - 0.5) / 2, 0.0], abs=1e-6
    )


@pytest.mark.parametrize("make", [FedEWC, FedLwF, Target])
def test_without_a_prior_or_with_strength_zero_it_is_fedavg(make: Any) -> None:
    plain = FedAvg(**STEP)
    nothing = OutputKL(0.0, EARLIER, scaled_logits, torch.ones(1, 1))
    data, theta = one_sample(1.0, 2), torch.tensor([0.1, 0.2, 0.3])
    for prior in (None, nothing):
        rule: HeldAtNodes = make(prior=prior, **STEP)
        assert sent(rule, CROSS_ENTROPY, theta, data) == sent(plain, CROSS_ENTROPY, theta, data)
    assert ALGORITHMS[make.name] is make


def test_fedlwf_compares_outputs_and_nothing_else() -> None:
    with pytest.raises(SettingError, match="fedlwf compares outputs"):
        FedLwF(prior=SquaredEuclidean(1.0, EARLIER))


def test_a_fleet_does_not_send_the_earlier_model() -> None:
    spec = RunSpec(algorithm=FedEWC(prior=SquaredEuclidean(1.0, EARLIER)))
    with pytest.raises(SettingError, match="sends every node the earlier model"):
        check_fleet(FleetSettings(2), spec)
