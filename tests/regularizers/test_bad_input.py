"""What a regulariser refuses, and what it warns of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmeta.core.errors import DataError, FedmetaError, ModelError, SettingError
from fedmeta.core.tree import Tree, squared_norm
from fedmeta.priors import (
    Bregman,
    ConvexityWarning,
    GeneralisedKL,
    ItakuraSaito,
    OutputKL,
    PositiveParameters,
    Regularizer,
    SquaredEuclidean,
    SquaredMahalanobis,
    with_proximal,
)

THETA = {"body": torch.tensor([[3.0, 0.5]]).double(), "head": torch.ones(2).double()}
PRIOR = {"body": torch.tensor([[1.0, 2.0]]).double(), "head": torch.full((2,), 0.5).double()}
INPUTS = torch.ones(3, 1).double()


def predict(theta: Tree, inputs: Tensor) -> Tensor:
    return inputs @ theta["body"] + theta["head"]


MAKERS: dict[str, Callable[[float, Tree], Regularizer]] = {
    "SquaredEuclidean": SquaredEuclidean,
    "SquaredMahalanobis": lambda s, p: SquaredMahalanobis(s, p, p),
    "GeneralisedKL": GeneralisedKL,
    "ItakuraSaito": ItakuraSaito,
    "Bregman": lambda s, p: Bregman(s, p, squared_norm),
    "OutputKL": lambda s, p: OutputKL(s, p, predict, INPUTS),
}
every = pytest.mark.parametrize("name", MAKERS)


@every
@pytest.mark.parametrize("strength", [-1.0, float("inf"), float("nan")])
def test_strength_must_be_a_number_of_at_least_0(name: str, strength: float) -> None:
    with pytest.raises(SettingError, match="strength λ"):
        MAKERS[name](strength, PRIOR)


@every
def test_a_prior_of_another_model_is_refused_by_tensor(name: str) -> None:
    make = MAKERS[name]
    with pytest.raises(ModelError, match="no tensor 'body' nor any other"):
        make(1.0, {"trunk": torch.ones(1)}).checked(THETA)
    with pytest.raises(ModelError, match=r"'head' has shape \(3,\) in the prior .* \(2,\)"):
        make(1.0, {**PRIOR, "head": torch.ones(3)}).checked(THETA)
    with pytest.raises(ModelError, match="prior model has NaN or infinite"):
        make(1.0, {**PRIOR, "head": torch.tensor([1.0, torch.nan])}).checked(THETA)


@every
def test_only_squares_have_a_proximal_step(name: str) -> None:
    prior = MAKERS[name](1.0, PRIOR)
    if name.startswith("Squared"):
        assert with_proximal(prior) is prior
    else:
        with pytest.raises(SettingError, match=f"{name} has no closed proximal step.*linearised"):
            with_proximal(prior)


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ({"body": torch.ones(1, 2)}, "importance has no tensor 'head'"),
        ({**PRIOR, "tail": torch.ones(1)}, "importance has a tensor 'tail'"),
        ({**PRIOR, "head": torch.ones(3)}, r"'head' has shape \(3,\) in the importance"),
        ({**PRIOR, "head": torch.tensor([1.0, -1.0])}, "importance of tensor 'head' has negative"),
        ({**PRIOR, "body": torch.tensor([[1.0, torch.nan]])}, "importance of tensor 'body'"),
        ({**PRIOR, "body": torch.tensor([[1.0, torch.inf]])}, "importance of tensor 'body'"),
    ],
)
def test_importance_of_another_model_or_no_importance(importance: Tree, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        SquaredMahalanobis(1.0, PRIOR, importance).checked(THETA)


def test_importance_of_the_whole_model_serves_a_partial_prior() -> None:
    prior = SquaredMahalanobis(1.0, {"body": PRIOR["body"]}, PRIOR).checked(THETA)
    assert list(prior.importance) == ["body"]


@pytest.mark.parametrize("kind", [GeneralisedKL, ItakuraSaito])
@pytest.mark.parametrize(
    ("positive", "message"),
    [
        (lambda t: -t["head"], "not positive and finite at the prior model .*entry -0.5"),
        (lambda t: 0.75 - t["head"], "not positive and finite at the initial model .*entry -0.25"),
        (lambda t: t["head"] / 0, "not positive and finite"),
        (lambda t: t["tail"], "positive function of the model fails .KeyError: 'tail'"),
        (lambda t: t["head"][t["head"] > 0.7], r"shape \(2,\) for this model and \(0,\)"),
        (len, "returns no tensor .int"),
    ],
)
def test_functions_that_are_not_positive(kind: Any, positive: Any, message: str) -> None:
    with pytest.raises(FedmetaError, match=message):
        kind(1.0, PRIOR, positive).checked(THETA)


@pytest.mark.parametrize("kind", [GeneralisedKL, ItakuraSaito])
def test_not_positive_is_seen_for_every_repeat(kind: Any) -> None:
    prior = kind(1.0, PRIOR, PositiveParameters(lambda leaf: leaf))
    stacked = {name: torch.stack([leaf, leaf, -leaf]) for name, leaf in THETA.items()}
    with pytest.raises(ModelError, match="at the initial model"):
        torch.func.vmap(lambda theta: prior.checked(theta).value(theta))(stacked)


@pytest.mark.parametrize("kind", [GeneralisedKL, ItakuraSaito])
def test_what_leaves_the_positive_numbers_later_is_not_a_number(kind: Any) -> None:
    prior = kind(1.0, PRIOR, PositiveParameters(lambda leaf: leaf))
    theta = {**THETA, "head": torch.tensor([1.0, -1.0]).double()}
    assert bool(prior.value(theta).isnan())
    assert prior.gradient(theta)["head"].isnan().tolist() == [False, True]


def concave(theta: Tree) -> Tensor:
    return -squared_norm(theta)


def valley(theta: Tree) -> Tensor:
    """Convex near the prior alone: no divergence is negative, but far away half-way is too high."""
    gap = torch.cat([(leaf - PRIOR[name]).reshape(-1) for name, leaf in theta.items()])
    return 1 - torch.exp(-gap.square()).mean()


@pytest.mark.parametrize(
    ("h", "message"),
    [
        (concave, r"at random point \d+ \(seed 0, radius 0.*\) the divergence is -.*below 0"),
        (valley, r"half-way to random point \d+ \(seed 0, .*above .* mean of the two ends"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_h_that_is_not_convex_is_warned_of(
    h: Callable[[Tree], Tensor], message: str, dtype: torch.dtype
) -> None:
    theta = {name: leaf.to(dtype) for name, leaf in THETA.items()}
    with pytest.warns(ConvexityWarning, match=message):
        Bregman(1.0, PRIOR, h).checked(theta)


@pytest.mark.parametrize(
    "h",
    [
        squared_norm,
        lambda t: sum(leaf.sum() for leaf in t.values()),  # linear: rounding of both signs
        lambda t: 1e4 + t["head"].sum(),
        lambda t: torch.logsumexp(t["body"].reshape(-1), 0),
        lambda t: -t["body"].log().sum(),  # not defined everywhere
        lambda t: t["body"].abs().max(),
        lambda t: (1e3 * t["head"]).cosh().sum(),  # soon infinite
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_warning_of_convex_functions(h: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = {"body": torch.rand(40, 50, generator=generator), "head": torch.zeros(2)}
    theta = {name: leaf.to(dtype) for name, leaf in theta.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Bregman(1.0, theta, h).checked(theta)


@pytest.mark.parametrize(
    ("h", "message"),
    [
        (lambda t: t["head"], r"h returns shape \(2,\)"),
        (lambda t: t["tail"].sum(), "h fails .KeyError: 'tail'"),
        (lambda t: (0.5 - t["head"]).log().sum(), "not finite at the prior"),
        (lambda t: (t["head"] - 0.5).norm().sqrt(), "gradient is not finite at the prior"),
    ],
)
def test_h_that_cannot_be_used(h: Any, message: str) -> None:
    with pytest.raises(FedmetaError, match=message):
        Bregman(1.0, PRIOR, h).checked(THETA)


def test_outputs_need_the_whole_model_and_inputs() -> None:
    with pytest.raises(ModelError, match=r"prior model has no tensor 'head'.*every tensor"):
        OutputKL(1.0, {"body": PRIOR["body"]}, predict, INPUTS).checked(THETA)
    with pytest.raises(DataError, match="no inputs"):
        OutputKL(1.0, PRIOR, predict, torch.zeros(0, 1))
    with pytest.raises(SettingError, match="temperature is 0"):
        OutputKL(1.0, PRIOR, predict, INPUTS, temperature=0.0)
    with pytest.raises(SettingError, match="predict of the prior model fails"):
        OutputKL(1.0, PRIOR, predict, torch.ones(3, 5)).checked(THETA)
    with pytest.raises(SettingError, match=r"shape \(3,\) for 3 inputs"):
        OutputKL(1.0, PRIOR, lambda t, x: predict(t, x)[:, 0], INPUTS).checked(THETA)
    with pytest.raises(ModelError, match="prior model predicts NaN"):
        OutputKL(1.0, PRIOR, predict, INPUTS * torch.nan).checked(THETA)
