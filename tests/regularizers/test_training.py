"""ADMM-FedMeta with every regulariser: the platform's step, alone and in the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta, Contribution, Fleet
from fedmeta.core import tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.serialization import serialize
from fedmeta.core.tree import Tree
from fedmeta.engine import recording
from fedmeta.priors import (
    Bregman,
    GeneralisedKL,
    ItakuraSaito,
    OutputKL,
    PositiveParameters,
    Regularizer,
    SquaredEuclidean,
    SquaredMahalanobis,
)
from problems import classification, double, engine_for, flat, mlp, paper_admm, trace

MODEL = double(mlp())
INNER = Adaptation(0.1)
DATA = classification()
PRIOR = {name: 0.5 * leaf + 0.3 for name, leaf in MODEL.theta.items()}
BACKBONE = {name: leaf for name, leaf in PRIOR.items() if name.startswith("0.")}
IMPORTANCE = {name: leaf.square() for name, leaf in PRIOR.items()}


def h(theta: Tree) -> Tensor:
    return torch.stack([leaf.exp().sum() + leaf.square().sum() for leaf in theta.values()]).sum()


def priors(strength: float, prior: Tree) -> dict[str, Regularizer]:
    return {
        "Euclidean": SquaredEuclidean(strength, prior),
        "Mahalanobis": SquaredMahalanobis(strength, prior, IMPORTANCE),
        "KL": GeneralisedKL(strength, prior),
        "Itakura-Saito": ItakuraSaito(strength, prior, PositiveParameters(torch.exp)),
        "h": Bregman(strength, prior, h),
        "outputs": OutputKL(strength, prior, MODEL, torch.tensor(DATA.inputs[:7])),
    }


every = pytest.mark.parametrize("name", priors(0.0, PRIOR))


def run(algorithm: ADMMFedMeta, rounds: int = 4) -> Tensor:
    return trace(engine_for(algorithm, DATA, MODEL), MODEL, rounds).theta[-1]


def algorithms(**rest: Any) -> list[ADMMFedMeta]:
    return [
        paper_admm(INNER, 0.5, **rest),
        paper_admm(INNER, 0.5, rule="stale", **rest),
        ADMMFedMeta(INNER, **rest),  # with the automatic penalty
    ]


@every
def test_no_strength_is_no_prior_bit_for_bit(name: str) -> None:
    for algorithm in algorithms():
        with_it = replace(algorithm, prior=priors(0.0, PRIOR)[name])
        assert torch.equal(run(with_it), run(algorithm))


@every
def test_it_pulls(name: str) -> None:
    """After some rounds with the prior the divergence is smaller than without."""
    prior = priors(0.3, PRIOR)[name]
    algorithm = paper_admm(INNER, 1.0)
    ends = [
        trace(engine_for(replace(algorithm, prior=each), DATA, MODEL), MODEL, 30).state.theta
        for each in (prior, None)
    ]
    assert float(prior.value(ends[0])) < 0.9 * float(prior.value(ends[1]))


@every
def test_a_platform_step_by_formula(name: str) -> None:
    prior, fleet = priors(0.3, PRIOR)[name], Fleet(torch.tensor(2.0).double(), 3)
    total = Contribution(tree.scale(0.1, MODEL.theta), fleet.penalty, {})
    algorithm = paper_admm(INNER, prior=prior)
    state, _ = algorithm.platform_step(algorithm.init(MODEL.theta, fleet), total, fleet)
    pull = flat(prior.gradient(MODEL.theta))
    assert torch.allclose(flat(state.theta), 1.05 * flat(MODEL.theta) - pull / 2, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in priors(0.0, PRIOR) if name != "outputs"])
def test_a_backbone_alone_is_held(name: str) -> None:
    """The first step of the head is that of a run without a prior, the backbone's is not."""
    prior = priors(0.3, BACKBONE)[name]
    for algorithm in algorithms():
        held, free = (
            trace(engine_for(replace(algorithm, prior=each), DATA, MODEL), MODEL, 1).state.theta
            for each in (prior, None)
        )
        assert list(held) == list(free)
        heads = [leaf for leaf in held if leaf not in BACKBONE]
        if not algorithm.automatic:  # else the pull has a say in how far all parameters go
            assert all(torch.equal(held[leaf], free[leaf]) for leaf in heads)
        assert all(not torch.equal(held[leaf], free[leaf]) for leaf in BACKBONE)


@every
def test_the_proximal_step_is_taken_or_refused(name: str) -> None:
    for prior in (PRIOR, BACKBONE) if name != "outputs" else (PRIOR,):
        given = priors(1e9, prior)[name]
        if name not in ("Euclidean", "Mahalanobis"):
            with pytest.raises(SettingError, match="no closed proximal step"):
                paper_admm(INNER, platform="proximal", prior=given)
            continue
        algorithm = paper_admm(INNER, platform="proximal", prior=given)
        if name == "Euclidean":
            end = trace(engine_for(algorithm, DATA, MODEL), MODEL, 2).state.theta
            assert all(torch.allclose(end[leaf], prior[leaf]) for leaf in prior)
        else:
            assert bool(run(algorithm).isfinite().all())


@every
def test_the_platform_is_recorded_and_gives_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = paper_admm(INNER, 0.5, prior=priors(0.1, PRIOR)[name])
    ends = []
    for patience in (-1.0, float("inf")):
        monkeypatch.setattr(recording, "_PATIENCE", patience)
        engine = engine_for(algorithm, DATA, MODEL)
        ends.append(trace(engine, MODEL, 3).theta[-1])
        if patience < 0:
            assert engine._platform._recorded
            assert all(ready.concurrent for ready in engine._platform._recorded.values())
    assert torch.equal(*ends)


@every
def test_repeats_start_and_step_together(name: str) -> None:
    """As they do alone, also through the checks before the first round."""
    algorithm = paper_admm(INNER, prior=priors(0.3, PRIOR)[name])
    thetas = [tree.scale(factor, MODEL.theta) for factor in (1.0, 0.5)]
    stacked = {leaf: torch.stack([theta[leaf] for theta in thetas]) for leaf in MODEL.theta}

    def step(theta: Tree) -> Tree:
        fleet = Fleet(torch.tensor(2.0).double(), 3)
        total = Contribution(tree.scale(0.1, theta), fleet.penalty, {})
        return algorithm.platform_step(algorithm.init(theta, fleet), total, fleet)[0].theta

    together = torch.func.vmap(step)(stacked)
    for i, theta in enumerate(thetas):
        mine = {leaf: values[i] for leaf, values in together.items()}
        assert torch.allclose(flat(mine), flat(step(theta)))


def test_settings_tell_all_kinds_apart() -> None:
    plain = [serialize(prior) for prior in priors(0.3, PRIOR).values()]
    plain += [serialize(kind(0.3, PRIOR)) for kind in (GeneralisedKL, ItakuraSaito)]
    assert len({str(each) for each in plain}) == len(plain) - 1  # KL is there twice
