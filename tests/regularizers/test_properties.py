"""What every regulariser must satisfy, in float64 on random models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.tree import Tree
from fedmeta.priors import (
    Bregman,
    GeneralisedKL,
    ItakuraSaito,
    OutputKL,
    PositiveParameters,
    Proximal,
    Regularizer,
    SquaredEuclidean,
    SquaredMahalanobis,
)

SHAPES = {"body": (2, 2), "head": (3,)}
IMPORTANCE = {"body": torch.tensor([[0.5, 2.0], [1.0, 3.0]]), "head": torch.tensor([1.0, 0.1, 4.0])}
IMPORTANCE = {name: leaf.double() for name, leaf in IMPORTANCE.items()}
FLAT = {"body": torch.zeros(2, 2).double(), "head": torch.tensor([0.0, 1.0, 0.0]).double()}
INPUTS = torch.tensor([[1.0, 0.5], [-0.3, 2.0], [0.0, 1.0], [2.0, 2.0]]).double()


def identity(leaf: Tensor) -> Tensor:
    return leaf


def h(theta: Tree) -> Tensor:
    """Strictly convex, and no sum over entries."""
    entries = torch.cat([leaf.reshape(-1) for leaf in theta.values()])
    return entries.exp().sum() + entries.square().sum().square() + torch.logsumexp(entries, 0)


def predict(theta: Tree, inputs: Tensor) -> Tensor:
    hidden = torch.tanh(inputs @ theta["body"])
    return hidden.sum(dim=1, keepdim=True) * theta["head"]


@dataclass(frozen=True)
class Case:
    """A regulariser, the least entry of its models, and what is true of it."""

    make: Callable[[float, Tree], Regularizer]
    least: float = -3.0
    strict: bool = True  # zero at the prior alone
    bregman: bool = True  # a Bregman divergence in θ itself


CASES = {
    "Euclidean": Case(SquaredEuclidean),
    "Mahalanobis": Case(lambda s, p: SquaredMahalanobis(s, p, IMPORTANCE)),
    "semidefinite": Case(lambda s, p: SquaredMahalanobis(s, p, FLAT), strict=False),
    "KL": Case(lambda s, p: GeneralisedKL(s, p, PositiveParameters(identity)), least=0.1),
    "Itakura-Saito": Case(lambda s, p: ItakuraSaito(s, p, PositiveParameters(identity)), least=0.1),
    "KL, softplus": Case(GeneralisedKL, bregman=False),
    "Itakura-Saito, exp": Case(
        lambda s, p: ItakuraSaito(s, p, PositiveParameters(torch.exp)), bregman=False
    ),
    "h": Case(lambda s, p: Bregman(s, p, h)),
    "outputs": Case(
        lambda s, p: OutputKL(s, p, predict, INPUTS, temperature=2.0),
        strict=False,
        bregman=False,
    ),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
bregman = pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.bregman], ids=[n for n, c in CASES.items() if c.bregman]
)
strengths = st.floats(0.01, 10)


@st.composite
def models(draw: Callable[..., Any], case: Case) -> Tree:
    theta = {}
    for name, shape in SHAPES.items():
        count = torch.Size(shape).numel()
        entries = draw(st.lists(st.floats(case.least, 3), min_size=count, max_size=count))
        theta[name] = torch.tensor(entries, dtype=torch.float64).reshape(shape)
    return theta


def close(a: Tree, b: Tree, tolerance: float = 1e-9) -> bool:
    assert list(a) == list(b)
    return all(torch.allclose(a[n], b[n], rtol=tolerance, atol=tolerance) for n in a)


def size(regularizer: Regularizer, *points: Tree) -> float:
    """How large the numbers are that cancel in a divergence."""
    return 1 + max(float(regularizer.value(point).abs()) for point in points)


@every
@given(st.data(), strengths)
def test_gradient_is_that_of_the_value(case: Case, data: st.DataObject, strength: float) -> None:
    prior, theta = data.draw(models(case)), data.draw(models(case))
    regularizer = case.make(strength, prior)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in theta.items()}
    regularizer.value(leaves).backward()  # type: ignore[no-untyped-call]
    expected = {name: leaf.grad for name, leaf in leaves.items()}
    assert close(regularizer.gradient(theta), expected)


@every
@given(st.data(), strengths)
def test_gradient_is_the_slope_of_the_value(
    case: Case, data: st.DataObject, strength: float
) -> None:
    """Without autograd: the central difference along a random direction."""
    prior, theta, direction = (data.draw(models(case)) for _ in range(3))
    regularizer = case.make(strength, prior)
    ends = [regularizer.value(tree.combine(1.0, theta, step, direction)) for step in (1e-5, -1e-5)]
    gradient = regularizer.gradient(theta)
    slope = sum(float((gradient[name] * direction[name]).sum()) for name in gradient)
    difference = float(ends[0] - ends[1]) / 2e-5
    assert difference == pytest.approx(slope, rel=1e-4, abs=1e-4 * size(regularizer, theta))


@every
@given(st.data(), strengths)
def test_not_negative_and_zero_at_the_prior(
    case: Case, data: st.DataObject, strength: float
) -> None:
    prior, theta = data.draw(models(case)), data.draw(models(case))
    regularizer = case.make(strength, prior)
    assert float(regularizer.value(prior)) == 0
    assert all(float(leaf.abs().max()) < 1e-12 for leaf in regularizer.gradient(prior).values())
    value = float(regularizer.value(theta))
    assert value > -1e-12 * size(case.make(strength, theta), prior)
    if case.strict:
        assume(max(float((theta[n] - prior[n]).abs().max()) for n in theta) > 1e-2)
        assert value > 0


@bregman
@given(st.data(), strengths)
def test_three_point_identity(case: Case, data: st.DataObject, strength: float) -> None:
    """D(a, c) = D(a, b) + D(b, c) + ⟨∇h(b) − ∇h(c), a − b⟩."""
    a, b, c = (data.draw(models(case)) for _ in range(3))
    to_b, to_c = case.make(strength, b), case.make(strength, c)
    pull, gap = to_c.gradient(b), tree.subtract(a, b)
    inner = sum(float((pull[name] * gap[name]).sum()) for name in gap)
    expected = float(to_b.value(a)) + float(to_c.value(b)) + inner
    scale = size(to_b, a) + size(to_c, a, b) + abs(inner)
    assert float(to_c.value(a)) == pytest.approx(expected, abs=1e-9 * scale)


@every
@given(st.data())
def test_repeats_are_mapped_over(case: Case, data: st.DataObject) -> None:
    prior = data.draw(models(case))
    thetas = [data.draw(models(case)) for _ in range(3)]
    regularizer = case.make(0.7, prior)
    stacked = {name: torch.stack([theta[name] for theta in thetas]) for name in prior}

    def both(theta: Tree) -> tuple[Tensor, Tree]:
        mine = regularizer.checked(theta).fitted(theta)
        return mine.value(theta), mine.gradient(theta)

    values, gradients = torch.func.vmap(both)(stacked)
    for i, theta in enumerate(thetas):
        assert torch.allclose(values[i], regularizer.value(theta))
        mine = {name: leaf[i] for name, leaf in gradients.items()}
        assert close(mine, regularizer.gradient(theta))


@pytest.mark.parametrize("name", [name for name in CASES if name != "outputs"])
@given(st.data())
def test_a_prior_of_some_tensors(name: str, data: st.DataObject) -> None:
    """Value and gradient are those of these tensors; the others are free."""
    case = CASES[name]
    prior, theta = data.draw(models(case)), data.draw(models(case))
    backbone = case.make(0.7, {"body": prior["body"]}).checked(theta)
    full = case.make(0.7, {**prior, "head": theta["head"]})
    if name != "h":  # which is no sum over entries
        assert torch.allclose(backbone.value(theta), full.value(theta))
        assert close(backbone.gradient(theta), full.gradient(theta))
    assert not backbone.gradient(theta)["head"].any()
    elsewhere = {**theta, "head": theta["head"] + 1}
    assert torch.equal(backbone.value(elsewhere), backbone.value(theta))
    alone = {"body": theta["body"]}
    assert torch.equal(backbone.gradient(alone)["body"], backbone.gradient(theta)["body"])
    if isinstance(backbone, Proximal):
        moved = backbone.proximal(theta, torch.tensor(2.0).double())
        assert torch.equal(moved["head"], theta["head"])


@every
@given(st.data())
def test_order_and_further_tensors_of_the_prior_do_not_matter(
    case: Case, data: st.DataObject
) -> None:
    prior, theta = data.draw(models(case)), data.draw(models(case))
    turned = {"other": torch.ones(2), **{name: prior[name] for name in reversed(prior)}}
    for other in (case.make(0.7, turned), case.make(0.7, turned).checked(theta)):
        assert torch.equal(other.value(theta), case.make(0.7, prior).value(theta))
        assert list(other.gradient(theta)) == list(theta)


@every
def test_fitted_takes_the_type_of_the_model(case: Case) -> None:
    theta = {name: torch.full(shape, 0.5) for name, shape in SHAPES.items()}
    prior = {name: torch.ones(shape).double() for name, shape in SHAPES.items()}
    fitted = case.make(0.7, prior).fitted(theta)
    assert fitted.value(theta).dtype == torch.float32
    assert all(leaf.dtype == torch.float32 for leaf in fitted.gradient(theta).values())


@pytest.mark.parametrize("name", ["Euclidean", "Mahalanobis", "semidefinite"])
@given(st.data(), strengths, st.floats(0.01, 100))
def test_proximal_point_is_stationary(
    name: str, data: st.DataObject, strength: float, stiffness: float
) -> None:
    case = CASES[name]
    prior, centre = data.draw(models(case)), data.draw(models(case))
    regularizer = case.make(strength, prior)
    assert isinstance(regularizer, Proximal)
    point = regularizer.proximal(centre, torch.tensor(stiffness, dtype=torch.float64))
    for leaf, pull in regularizer.gradient(point).items():
        residual = stiffness * (point[leaf] - centre[leaf]) + pull
        assert float(residual.abs().max()) < 1e-9 * (stiffness + strength)


@given(st.data())
def test_mahalanobis_with_importance_one_is_euclidean(data: st.DataObject) -> None:
    prior, theta = (data.draw(models(CASES["Euclidean"])) for _ in range(2))
    ones = {name: torch.ones_like(leaf) for name, leaf in prior.items()}
    weighted, plain = SquaredMahalanobis(0.7, prior, ones), SquaredEuclidean(0.7, prior)
    assert torch.allclose(weighted.value(theta), plain.value(theta))
    assert close(weighted.gradient(theta), plain.gradient(theta))


@given(st.data())
def test_gradients_on_positive_numbers_by_formula(data: st.DataObject) -> None:
    """log(x/p) and 1/p − 1/x, through the derivative of the map."""
    case = CASES["KL, softplus"]
    prior, theta = data.draw(models(case)), data.draw(models(case))
    x, p = (tree.map_leaves(torch.exp, each) for each in (theta, prior))
    on_exp = PositiveParameters(torch.exp)
    kl = {n: 0.7 * x[n] * (theta[n] - prior[n]) for n in x}
    ratio = {n: 0.7 * x[n] * (1 / p[n] - 1 / x[n]) for n in x}
    assert close(GeneralisedKL(0.7, prior, on_exp).gradient(theta), kl)
    assert close(ItakuraSaito(0.7, prior, on_exp).gradient(theta), ratio)


@given(st.data())
def test_bregman_finds_the_known_divergences(data: st.DataObject) -> None:
    prior, theta = (data.draw(models(CASES["KL"])) for _ in range(2))
    onto = PositiveParameters(identity)
    known = {
        "‖x‖²": (tree.squared_norm, SquaredEuclidean(0.7, prior)),
        "Σ x log x": (lambda t: (onto(t) * onto(t).log()).sum(), GeneralisedKL(0.7, prior, onto)),
        "−Σ log x": (lambda t: -onto(t).log().sum(), ItakuraSaito(0.7, prior, onto)),
    }
    for function, expected in known.values():
        derived = Bregman(0.7, prior, function).checked(theta)
        assert torch.allclose(derived.value(theta), expected.value(theta), atol=1e-9)
        assert close(derived.gradient(theta), expected.gradient(theta))


@given(st.data(), st.floats(0.3, 5))
def test_outputs_by_formula_and_zero_where_they_agree(
    data: st.DataObject, temperature: float
) -> None:
    prior, theta = (data.draw(models(CASES["outputs"])) for _ in range(2))
    regularizer = OutputKL(0.7, prior, predict, INPUTS, temperature)
    p, q = (torch.softmax(predict(t, INPUTS) / temperature, 1) for t in (prior, theta))
    expected = 0.7 * (p * (p / q).log()).sum() / len(INPUTS)
    assert torch.allclose(regularizer.value(theta), expected, atol=1e-12)
    # tanh is odd: with both signs turned the parameters differ and the outputs do not.
    mirrored = {"body": -prior["body"], "head": -prior["head"]}
    assert torch.allclose(predict(mirrored, INPUTS), predict(prior, INPUTS))
    assert abs(float(regularizer.value(mirrored))) < 1e-14
    pull = regularizer.gradient(mirrored)
    assert all(float(leaf.abs().max()) < 1e-12 for leaf in pull.values())


def test_kl_of_given_probabilities() -> None:
    """Where x and p are probabilities, generalised KL is KL(p_θ ‖ p_{θ_p}), summed over inputs."""

    def probabilities(theta: Tree) -> Tensor:
        return torch.softmax(predict(theta, INPUTS), 1)

    generator = torch.Generator().manual_seed(0)
    prior, theta = (
        {name: torch.randn(shape, generator=generator).double() for name, shape in SHAPES.items()}
        for _ in range(2)
    )
    x, p = probabilities(theta), probabilities(prior)
    regularizer = GeneralisedKL(2.0, prior, probabilities).checked(theta)
    assert torch.allclose(regularizer.value(theta), 2 * (x * (x / p).log()).sum())
