"""ν in both forms, closed-form constants against derivatives, estimates against closed forms."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.core.sample_sets import NodeData, Samples, union
from fedmeta.core.tree import Tree
from fedmeta.theory import estimation as estimates
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.estimation import Search, estimate
from problems import double, flat, mlp, unflat
from theory.cases import (
    ALPHA,
    CASES,
    FIRST,
    SECOND,
    SIGMOID,
    SOFTMAX,
    THIRD,
    Case,
    node_of,
    sigmoid_squared,
)

FIELDS = list(NodeConstants.__dataclass_fields__)
QUICK = Search(iterations=30, tolerance=1e-3, turns=3, samples=6)


def for_one(samples: Samples, theta: Tree) -> tuple[Samples, Tree]:
    """A node's samples and a point with a node axis, as the estimates want them."""
    return Samples(*(part[None] for part in samples)), {n: leaf[None] for n, leaf in theta.items()}


def estimated(data: NodeData) -> NodeConstants:
    with_axis = NodeData(*(Samples(*(part[None] for part in each)) for each in data))
    rule = Adaptation(ALPHA)
    return estimate(SIGMOID.objective, rule, with_axis, [SIGMOID.theta], QUICK).nodes[0]


def test_nu_as_printed_and_as_derived() -> None:
    # μ = 50, α = 1/100, ζ = 0: printed 1.5·51·50 = 3825, derived 50·1.5² = 112.5.
    node = NodeConstants(50.0, 2.0, 0.0)
    assert node.nu(0.01, printed=True) == pytest.approx(3825)
    assert node.nu(0.01) == pytest.approx(112.5)
    # αβζ = 0.01·2·3 on top of either.
    curved = replace(node, hessian=3.0)
    assert curved.nu(0.01, printed=True) - node.nu(0.01, printed=True) == pytest.approx(0.06)
    assert curved.nu(0.01) - node.nu(0.01) == pytest.approx(0.06)


def test_quadratics_have_no_gradient_bound_and_need_none() -> None:
    assert NodeConstants(1.0, inf, 0.0).nu(1.0) == 4.0
    assert NodeConstants(1.0, inf, 0.1).nu(1.0) == inf


@pytest.mark.parametrize("value", [-1.0, nan])
def test_constants_that_make_no_sense_are_refused(value: float) -> None:
    with pytest.raises(SettingError, match="the constant hessian is"):
        NodeConstants(1.0, 1.0, value)
    with pytest.raises(SettingError, match="number of nodes"):
        Constants((), 0.1, closed_form=True)


@pytest.mark.parametrize("label", [0, 1])
def test_derivatives_of_the_sigmoid_loss(label: int) -> None:
    def loss(z: torch.Tensor) -> torch.Tensor:
        return sigmoid_squared(z.reshape(1, 1), torch.tensor([label]))[0]

    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    derivative = loss
    for closed in (FIRST, SECOND, THIRD):
        derivative = torch.func.grad(derivative)
        values = torch.func.vmap(derivative)(grid).abs()
        assert float(values.max()) <= closed * (1 + 1e-12)
        assert float(values.max()) >= closed * 0.999


def test_power_iteration_finds_the_norm_of_the_whole_hessian() -> None:
    module = mlp()
    theta, objective = double(module).theta, Objective(double(module), SOFTMAX.loss)
    samples = union(node_of(SOFTMAX.data, 1))

    def of_vector(vector: torch.Tensor) -> torch.Tensor:
        return objective.value(unflat(vector, theta), samples)

    whole = torch.func.hessian(of_vector)(flat(theta))
    exact = float(torch.linalg.matrix_norm(whole, 2))
    one, at = for_one(samples, theta)
    found = float(estimates.smoothness(objective, one, [at]))
    assert found == pytest.approx(exact, rel=1e-4)
    assert found <= exact * (1 + 1e-12)
    other = float(estimates.smoothness(objective, one, [at], Search(seed=5)))
    assert other != found
    assert other == pytest.approx(exact, rel=1e-4)
    assert float(estimates.smoothness(objective, one, [at])) == found


def test_a_quadratic_loss_has_no_third_derivative() -> None:
    def squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - labels).square()

    objective = Objective(double(SIGMOID.module), squared)
    samples, theta = for_one(union(node_of(SIGMOID.data, 0)), SIGMOID.theta)
    assert estimates.hessian_lipschitz(objective, samples, [theta]) < 1e-10


def test_deviations_are_those_of_single_gradients_and_hessians() -> None:
    samples, theta = union(node_of(SIGMOID.data, 3)), SIGMOID.theta
    real, objective = Samples(*(part[samples.mask > 0] for part in samples)), SIGMOID.objective

    def of_vector(vector: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        one = Samples(x[None], y[None], torch.ones(1, dtype=torch.float64))
        return objective.value(unflat(vector, theta), one)

    at = for_one(samples, theta)
    for order, found in (
        (torch.func.grad, float(estimates.gradient_deviation(objective, *at))),
        (torch.func.hessian, float(estimates.hessian_deviation(objective, *at))),
    ):
        each = torch.func.vmap(order(of_vector), (None, 0, 0))(flat(theta), *real[:2])
        off = each - each.mean(0)
        norms = off.norm(dim=1) if off.ndim == 2 else torch.linalg.matrix_norm(off, 2)
        assert found == pytest.approx(float(norms.square().mean().sqrt()), rel=1e-4)


def points(case: Case) -> list[Tree]:
    """Random ones, and some that differ in the bias alone, where samples weigh in together."""
    like = case.theta
    weight, bias = like
    drawn = {
        name: 2 * randomness.truncated_normal(randomness.key(place), leaf.numel()).view_as(leaf)
        for place, (name, leaf) in enumerate(like.items())
    }
    biases = {3: ([0, 0, -20], [1.3, 0, -20], [20, 0, 0]), 1: ([-1], [0.5], [1])}[case.outputs]
    return [
        like,
        drawn,
        *(
            {weight: torch.zeros_like(like[weight]), bias: torch.tensor(b, dtype=torch.float64)}
            for b in biases
        ),
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_estimates_never_exceed_closed_forms_and_reach_a_good_share(case: Case) -> None:
    closed = case.constants()
    two = NodeData(*(Samples(*(leaf[[1, 4]] for leaf in part)) for part in case.data))
    found = estimate(
        case.objective, Adaptation(ALPHA), two, points(case), QUICK, target=case.target
    )
    assert not found.closed_form
    assert found.target is not None
    assert closed.target is not None
    share = {"smoothness": 0.8, "gradient": 0.4, "hessian": 0.5, "gradient_deviation": 0.3}
    pairs = [(closed.nodes[1], found.nodes[0]), (closed.nodes[4], found.nodes[1])]
    for exact, guess in [*pairs, (closed.target, found.target)]:
        for name in FIELDS:
            assert getattr(guess, name) <= getattr(exact, name) * (1 + 1e-9), name
            assert getattr(guess, name) >= share.get(name, 0.0) * getattr(exact, name), name
    for printed in (True, False):
        assert found.nu(printed)[0] <= closed.nu(printed)[1]
    assert all(guess.gradient_gap > 0 < guess.hessian_gap for _, guess in pairs)


def test_padding_is_no_sample() -> None:
    padded = node_of(SIGMOID.data, 2)
    bare = NodeData(*(Samples(*(leaf[part.mask > 0] for leaf in part)) for part in padded))
    assert len(bare.query.mask) < len(padded.query.mask)
    a, b = (estimated(data) for data in (padded, bare))
    for name in FIELDS:
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-10), name
    assert SIGMOID.closed(padded) == SIGMOID.closed(bare)
    assert SOFTMAX.closed(padded) == SOFTMAX.closed(bare)


def test_estimates_need_a_point() -> None:
    with pytest.raises(SettingError, match="no points"):
        estimate(SIGMOID.objective, Adaptation(ALPHA), SIGMOID.data, [])


def test_nodes_in_chunks_are_the_same_nodes() -> None:
    arguments = SIGMOID.objective, Adaptation(ALPHA), SIGMOID.data, [SIGMOID.theta]
    search = Search(iterations=8, tolerance=1e-15, turns=2, samples=3)  # none ends early
    whole, parts = (estimate(*arguments, replace(search, nodes=most)) for most in (None, 2))
    for a, b in zip(whole.nodes, parts.nodes, strict=True):
        for name in FIELDS:
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9), name
