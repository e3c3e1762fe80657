"""Data size, adaptation and forgetting: by hand, and against what is measured."""

from dataclasses import replace
from math import sqrt

import pytest
import torch

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.sample_sets import NodeData, Samples, union
from fedmeta.core.tree import Tree, squared_norm, subtract
from fedmeta.theory.bounds import Bound, Forgetting, Sizes, Sources, adaptation_bound, data_size
from fedmeta.theory.closed_form import elementwise_max
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.penalties import smallest_penalty
from fedmeta.theory.problem import Problem
from fedmeta.theory.theorem_check import check_bound
from theory.cases import ALPHA, CASES, Case, node_of, prior_of, run

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

# α = 1/2, μ = 2: αμ = 1, 1 + αμ = 2. Two equal nodes; 1/√Dˢ = 1/2, 1/√D^q = 1/3.
NODE = NodeConstants(2.0, 3.0, 1.0, 6.0, 4.0, gradient_gap=5.0, hessian_gap=7.0)
TARGET = NodeConstants(6.0, 10.0, 1.0, 12.0, 8.0)
HAND = Constants((NODE, NODE), 0.5, closed_form=True, target=TARGET)
SOURCES = Sources(HAND, [0.5, 0.5], [Sizes(4, 9), Sizes(4, 9)], 0.25)


def test_data_size_by_hand() -> None:
    printed = data_size(SOURCES, 1.0, printed=True)
    assert dict(printed.terms) == pytest.approx({"ε": 0.25, "few samples": 6 * (1 / 2 + 1 / 3)})
    derived = data_size(SOURCES, 1.0)
    # 2·6·(5/6) = 10; αβσʰ/√Dˢ = ½·3·4/2 = 3.
    assert list(derived.terms.values()) == pytest.approx([0.25, 10.0, 3.0])
    assert (derived.right, derived.slack) == pytest.approx((13.25, 12.25))


def test_adaptation_by_hand() -> None:
    # Target sets 16 and 25: 1/4, 1/5. Printed with μ = 4, 1 + αμ = 3: αβ_mψʰ = 5·7; 3²·5;
    # q = αμ(1 + αμ) = 6 times 6(1/5 + 1/3); s = 3 times 6(1/4 + 1/2); 5·4·(1/4 + 1/2).
    hand = replace(HAND, nodes=(replace(NODE, smoothness=4.0),) * 2)
    arguments = replace(SOURCES, constants=hand), Sizes(16, 25), 1.0
    printed = adaptation_bound(*arguments, printed=True)
    assert list(printed.terms.values()) == pytest.approx([0.25, 35.0, 45.0, 19.2, 13.5, 15.0])
    # Derived, μ = 6 of the target: 1 + αμ = 4; 4²·5; q = 4 times 12/5 + 6/3; s = 12 times
    # 12/4 + 6/2; 5·(8/4 + 4/2).
    derived = adaptation_bound(*arguments)
    assert list(derived.terms.values()) == pytest.approx([0.25, 35.0, 80.0, 17.6, 72.0, 20.0])
    with pytest.raises(SettingError, match="have no target"):
        adaptation_bound(replace(SOURCES, constants=replace(HAND, target=None)), *arguments[1:])


def test_forgetting_by_hand() -> None:
    # B printed = 1/4 + 3 + 6·(5/6) = 8.25; derived = 1/4 + 2·3 + 2·5 = 16.25; λ = 1/2.
    for printed, pull in ((True, 8.25), (False, 16.25)):
        found = Forgetting(SOURCES, 0.5, printed)
        assert sum(found.pull.values()) == pytest.approx(pull)
        assert found.divergence(1.0, 0.1).right == pytest.approx(pull * 0.1 / 0.5)
        assert found.strongly_convex(1.0, 2.0).right == pytest.approx(pull**2 / (2 * 0.25))
        assert found.prior_gradient(1.0, 0.75, 3.0).right == pytest.approx(0.75 + 3 * pull)
    with pytest.raises(SettingError, match="strength λ"):
        Forgetting(SOURCES, 0.0)


def test_verdicts_on_bounds() -> None:
    kept, broken = (Bound("some bound", False, left, {"a": 1.0, "b": 2.0}) for left in (2.9, 3.1))
    assert check_bound(kept, True).status == "holds"
    assert check_bound(kept, False).status == "not contradicted"
    assert check_bound(broken, True).status == check_bound(broken, False).status == "violated"
    assert str(check_bound(broken, True)) == "some bound (as derived): violated, slack -0.1"


DRAWS, FEW = 400, Sizes(3, 5)


def drawn(population: Samples, key: int) -> NodeData:
    """Independent support and query sets from a population, along an axis of draws."""

    def some(count: int, purpose: int) -> Samples:
        source = randomness.fold(randomness.key(key), purpose)
        rows = (randomness.uniform(source, DRAWS * count) * len(population.mask)).long()
        return Samples(*(part[rows.reshape(DRAWS, count)] for part in population))

    return NodeData(some(FEW.support, 1), some(FEW.query, 2))


def all_of(data: NodeData) -> Samples:
    samples = union(data)
    return Samples(*(part[samples.mask > 0] for part in samples))


def for_single_samples(case: Case, population: Samples) -> NodeConstants:
    """Constants that hold whatever is drawn: the largest of single samples."""
    found = NodeConstants(0.0, 0.0, 0.0)
    for row in range(len(population.mask)):
        one = Samples(*(part[row : row + 1] for part in population))
        found = elementwise_max(found, case.closed(NodeData(one, one)))
    return found


def meta_gradients(case: Case, theta: Tree, data: NodeData) -> Tree:
    equal = torch.full((len(data.support.mask),), 1.0, dtype=torch.float64)
    problem = Problem(case.objective, Adaptation(ALPHA), data, equal)
    return problem.node_gradients(theta)


def mean_norm(a: Tree) -> float:
    squares = torch.stack([leaf.flatten(1).square().sum(1) for leaf in a.values()]).sum(0)
    return float(squares.sqrt().mean())


@by_name
def test_data_size_and_adaptation_over_many_draws(case: Case) -> None:
    nodes, weights = [0, 1, 3], [0.2, 0.5, 0.3]
    populations = [all_of(node_of(case.data, node)) for node in nodes]
    other = all_of(case.target)
    theta = {n: 2 * leaf for n, leaf in case.theta.items()}
    m = for_single_samples(case, other)
    sources = [for_single_samples(case, population) for population in populations]
    sources = [
        replace(
            node,
            gradient_gap=node.gradient + m.gradient,
            hessian_gap=node.smoothness + m.smoothness,
        )
        for node in sources
    ]
    constants = Constants(tuple(sources), ALPHA, closed_form=True, target=m)

    few = [meta_gradients(case, theta, drawn(p, key)) for key, p in enumerate(populations)]
    whole = [
        meta_gradients(case, theta, NodeData(*2 * (Samples(*(x[None] for x in p)),)))
        for p in populations
    ]
    mixed, expected = (
        {n: sum(w * g[n] for w, g in zip(weights, each, strict=True)) for n in theta}
        for each in (few, whole)
    )
    trained = Sources(constants, weights, [FEW] * len(nodes), mean_norm(mixed))
    found = data_size(trained, mean_norm(expected))
    assert check_bound(found, constants.closed_form).status == "holds"
    # Stronger: the difference itself is within the terms that are not ε.
    assert 0 < mean_norm(subtract(expected, mixed)) <= found.right - found.terms["ε"]

    target = meta_gradients(case, theta, drawn(other, 9))
    adapted = adaptation_bound(trained, FEW, mean_norm(target))
    assert check_bound(adapted, constants.closed_form).status == "holds"
    assert 0 < mean_norm(subtract(target, mixed)) <= adapted.right - adapted.terms["ε"]


@by_name
def test_forgetting_bounds_on_a_run(case: Case) -> None:
    constants, weights, strength = case.constants(), case.weights, 0.5
    prior = prior_of(case, strength)
    rhos = smallest_penalty(constants, weights, strength)
    theta = run(case, rhos, 150, prior=prior)[-1].theta
    epsilon = case.problem(prior).gradient_norm(theta)
    square = float(squared_norm(subtract(theta, prior.prior)))
    earlier = case.target.query  # the earlier task's loss, with its own smoothness
    before, after = (
        sqrt(float(squared_norm(case.objective.gradient(point, earlier)[0])))
        for point in (prior.prior, theta)
    )
    assert constants.target is not None
    found = Forgetting(Sources(constants, weights, case.sizes, epsilon), strength)
    for bound in (
        found.divergence(square, sqrt(square)),
        found.strongly_convex(square, 2.0),
        found.prior_gradient(after, before, constants.target.smoothness),
    ):
        assert bound.left > 0
        assert check_bound(bound, constants.closed_form).status == "holds"
