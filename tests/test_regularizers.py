from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmeta.core.errors import ModelError, SettingError
from fedmeta.priors import SquaredEuclidean

PRIOR = {"a": torch.tensor([1.0, -1.0], dtype=torch.float64), "b": torch.zeros(1).double()}
THETA = {"a": torch.tensor([3.0, 0.0], dtype=torch.float64), "b": torch.ones(1).double()}


def test_value_and_gradient_by_hand() -> None:
    prior = SquaredEuclidean(0.5, PRIOR)
    assert float(prior.value(THETA)) == 0.5 * (4 + 1 + 1)
    assert prior.gradient(THETA)["a"].tolist() == [2, 1]
    assert prior.gradient(THETA)["b"].tolist() == [1]


def test_gradient_is_that_of_the_value() -> None:
    prior = SquaredEuclidean(0.7, PRIOR)
    expected = torch.func.grad(prior.value)(THETA)
    got = prior.gradient(THETA)
    assert all(torch.allclose(got[name], expected[name]) for name in PRIOR)


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_proximal_point_is_stationary(strength: float, stiffness: float) -> None:
    prior = SquaredEuclidean(strength, PRIOR)
    point = prior.proximal(THETA, torch.tensor(stiffness, dtype=torch.float64))
    for name, pull in prior.gradient(point).items():
        residual = stiffness * (point[name] - THETA[name]) + pull
        assert float(residual.abs().max()) < 1e-9 * (stiffness + strength)


def test_without_strength_nothing_pulls() -> None:
    prior = SquaredEuclidean(0.0, PRIOR)
    assert float(prior.value(THETA)) == 0
    assert prior.proximal(THETA, torch.tensor(2.0))["a"].tolist() == [3, 0]


@pytest.mark.parametrize("strength", [-1.0, float("inf"), float("nan")])
def test_strength_must_be_a_number_of_at_least_0(strength: float) -> None:
    with pytest.raises(SettingError, match="strength λ"):
        SquaredEuclidean(strength, PRIOR)


def test_fitting_takes_dtype_and_refuses_other_models() -> None:
    single = {name: leaf.float() for name, leaf in THETA.items()}
    assert SquaredEuclidean(1.0, PRIOR).fitted(single).prior["a"].dtype == torch.float32
    with pytest.raises(ModelError, match="no tensor 'a' nor any other"):
        SquaredEuclidean(1.0, {"c": PRIOR["a"]}).fitted(THETA)
    with pytest.raises(ModelError, match=r"'a' has shape \(3,\) .* \(2,\)"):
        SquaredEuclidean(1.0, {**PRIOR, "a": torch.zeros(3)}).fitted(THETA)
    with pytest.raises(ModelError, match="NaN or infinite"):
        SquaredEuclidean(1.0, {**PRIOR, "b": torch.tensor([torch.nan])}).checked(THETA)


def test_a_prior_of_some_tensors_leaves_the_others_free() -> None:
    prior = SquaredEuclidean(0.5, {"a": PRIOR["a"], "old head": torch.ones(7)}).checked(THETA)
    assert list(prior.prior) == ["a"]
    assert float(prior.value(THETA)) == 0.5 * (4 + 1)
    gradient = prior.gradient(THETA)
    assert (gradient["a"].tolist(), gradient["b"].tolist()) == ([2, 1], [0])
    moved = prior.proximal(THETA, torch.tensor(1.0))
    assert (moved["a"].tolist(), moved["b"].tolist()) == ([2, -0.5], [1])
