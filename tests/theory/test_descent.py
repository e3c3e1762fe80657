"""Along runs of the local engine: 𝓛 falls as the derived inequality says, and what comes of it."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import squared_norm, subtract
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.descent import descent_coefficients, stationarity
from fedmeta.theory.lagrangian import augmented_lagrangian, dual_residual, moves, primal_residual
from fedmeta.theory.penalties import Setting, smallest_penalty
from fedmeta.theory.problem import difference_errors
from fedmeta.theory.theorem_check import check_theorem
from problems import double, engine_for, flat, paper_admm
from theory.cases import ALPHA, CASES, SUMMABLE, Case, node_of, prior_of, run

ROUNDS = 50
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
@pytest.mark.parametrize("strength", [0.0, 0.4])
@pytest.mark.parametrize(
    ("platform", "times"), [("linearised", 1.0), ("linearised", 3.0), ("proximal", 1.5)]
)
def test_the_lagrangian_falls_in_every_round_by_what_is_derived(
    case: Case, strength: float, platform: str, times: float
) -> None:
    constants, weights = case.constants(), case.weights
    prior = prior_of(case, strength) if strength else None
    # At the smallest ρ the nodes' own steps count for nothing, a_e = 0; above it they do.
    rhos = [times * rho for rho in smallest_penalty(constants, weights, strength, 2.0)]
    rho, problem = torch.tensor(rhos, dtype=torch.float64), case.problem(prior)
    shots = run(case, rhos, ROUNDS + 1, prior=prior, platform=platform)
    values = [augmented_lagrangian(problem, shot, rho) for shot in shots]
    falls = descent_coefficients(Setting(constants, weights, rhos, strength, 2.0))
    assert min(*falls.a_e, *falls.a_p) > 0
    assert {*falls.b_e, *falls.b_p, *falls.c} == {0.0}
    for t in range(ROUNDS):
        bound = falls.bound(moves(shots[t], shots[t + 1]))
        assert values[t + 1] - values[t] <= bound < 0
    assert values[-1] >= 0  # never below the floor of F


@by_name
def test_with_differences_the_other_terms_make_up_for_their_error(case: Case) -> None:
    constants, weights = case.constants(), case.weights
    rhos = smallest_penalty(constants, weights)
    rho, problem = torch.tensor(rhos, dtype=torch.float64), case.problem()
    shots = run(case, rhos, ROUNDS + 1, curvature="finite-difference", difference=SUMMABLE)
    values = [augmented_lagrangian(problem, shot, rho) for shot in shots]
    for t in range(ROUNDS):
        deltas = tuple((s + 2.0) ** -1.5 for s in (t + 1, t + 2))
        falls = descent_coefficients(Setting(constants, weights, rhos), deltas)
        assert min(*falls.b_e, *falls.b_p, *falls.c) > 0
        assert values[t + 1] - values[t] <= falls.bound(moves(shots[t], shots[t + 1]))


def test_coefficients_by_hand() -> None:
    # α = 1, μ = 1, β = 2, ζ = 1/2: ν = 4 + 1 = 5. w = 1, ρ = 10, δ = (1/2, 1/4), λμ_r = 2.
    # e = αwζβ² = 2. a_e = 5 − 20 = −15. a_p = 5 − 50(20/100 + 1/10) − 1 = −11. b_e = 1/2.
    # b_p = 2·5·2·(1/4)/10 = 1/2. c = 2·(9/16)·4·(3/10) + 2·4·(1/4)(3/4)/10 = 1.35 + 0.15.
    constants = Constants((NodeConstants(1.0, 2.0, 0.5),), 1.0, closed_form=True)
    found = descent_coefficients(Setting(constants, [1.0], [10.0], 1.0, 2.0), (0.5, 0.25))
    flat = [row[0] for row in (found.a_e, found.a_p, found.b_e, found.b_p, found.c)]
    assert flat == pytest.approx([-15.0, -11.0, 0.5, 0.5, 1.5])


@by_name
def test_the_gradient_vanishes_at_the_rate_of_the_theorem(case: Case) -> None:
    constants, weights, rounds = case.constants(), case.weights, 300
    rhos, problem = smallest_penalty(constants, weights), case.problem()
    shots = run(case, rhos, rounds)
    squares = np.array([problem.gradient_norm(shot.theta) ** 2 for shot in shots])
    least = np.minimum.accumulate(squares)
    slope = np.polyfit(np.log(np.arange(1, rounds + 1)), np.log(least), 1)[0]
    assert slope <= -1

    first = augmented_lagrangian(problem, shots[0], torch.tensor(rhos, dtype=torch.float64))
    for last in (2, 20, rounds):
        smallest = float(squares[1:last].min())
        found = stationarity(Setting(constants, weights, rhos), last, smallest, first)
        assert found.left <= found.right
    with pytest.raises(SettingError, match="below what the theorem asks"):
        stationarity(Setting(constants, weights, [rho / 2 for rho in rhos]), 20, 0.0, first)


@by_name
def test_far_below_the_bound_the_lagrangian_rises_and_the_diagnosis_says_so(case: Case) -> None:
    constants, weights = case.constants(), case.weights
    rhos = [rho / 1000 for rho in smallest_penalty(constants, weights)]
    rho, problem = torch.tensor(rhos, dtype=torch.float64), case.problem()
    shots = run(case, rhos, 8)
    values = [augmented_lagrangian(problem, shot, rho) for shot in shots]
    assert max(np.diff(values)) > 0
    algorithm = paper_admm(Adaptation(ALPHA), curvature="exact")
    seen = check_theorem(algorithm, Setting(constants, weights, rhos))
    assert not seen.inside
    assert {v.status for v in seen.penalties} == {"violated"}


@by_name
@pytest.mark.parametrize("strength", [0.0, 0.4])
def test_residuals_are_those_the_engine_logs(case: Case, strength: float) -> None:
    prior = prior_of(case, strength) if strength else None
    rhos = [1.0, 2.0, 1.5, 3.0, 2.5]
    rho, problem = torch.tensor(rhos, dtype=torch.float64), case.problem(prior)
    shots = run(case, rhos, 4, prior=prior)
    settings: dict[str, Any] = {"prior": prior, "curvature": "exact"}
    named = dict(zip((n.name for n in case.federation.sources), rhos, strict=True))
    model = double(case.module)
    engine = engine_for(
        paper_admm(Adaptation(ALPHA), named, **settings), case.federation, model, loss=case.loss
    )
    state, nodes = engine.start(model.theta)
    for number, shot in enumerate(shots, start=1):
        state, nodes, metrics = engine.round(state, nodes, number)
        assert primal_residual(shot) == pytest.approx(metrics["primal_residual"], rel=1e-10)
        dual = dual_residual(problem, shot, rho)
        assert dual == pytest.approx(metrics["dual_residual"], rel=1e-10)
        step = sqrt(float(squared_norm(subtract(state.theta, shot.theta))))
        assert dual == pytest.approx(sum(rhos) * step, rel=1e-9)
        # With one local step −Σy is the meta-gradient: here differentiated through φ instead.
        found = problem.gradient_norm(shot.theta)
        assert found == pytest.approx(metrics["gradient_norm"], rel=1e-10)


@by_name
def test_the_lagrangian_term_by_term(case: Case) -> None:
    rhos, problem = [1.0, 2.0, 1.5, 3.0, 2.5], case.problem()
    shot = run(case, rhos, 3)[-1]
    by_hand = 0.0
    for i, (rho, w) in enumerate(zip(rhos, case.weights, strict=True)):
        local, dual = ({n: leaf[i] for n, leaf in part.items()} for part in (shot.local, shot.dual))
        apart, y = flat(local) - flat(shot.theta), flat(dual)
        by_hand += w * float(problem.node_value(local, node_of(case.data, i)))
        by_hand += float(y @ apart + rho / 2 * apart @ apart)
    found = augmented_lagrangian(problem, shot, torch.tensor(rhos, dtype=torch.float64))
    assert found == pytest.approx(by_hand, rel=1e-12)


@by_name
def test_where_nodes_agree_the_lagrangian_is_the_objective(case: Case) -> None:
    shot = run(case, [2.0] * 5, 1)[0]
    together = {n: leaf.expand(5, *leaf.shape) for n, leaf in shot.theta.items()}
    problem, rho = case.problem(prior_of(case, 0.4)), torch.full((5,), 2.0, dtype=torch.float64)
    agreed = type(shot)(shot.theta, together, shot.dual)
    by_hand = float((problem.weights * problem.node_values(together)).sum())
    by_hand += 0.4 * sum(leaf.numel() for leaf in shot.theta.values()) * 0.3**2
    assert augmented_lagrangian(problem, agreed, rho) == pytest.approx(by_hand, rel=1e-12)
    assert primal_residual(agreed) == 0


@by_name
def test_the_difference_error_keeps_its_bound(case: Case) -> None:
    constants, problem = case.constants(), case.problem()
    for delta in (3.0, 0.3, 0.03):
        found = difference_errors(problem, case.theta, delta)
        for node, error, length in zip(constants.nodes, *found, strict=True):
            derived = delta * node.hessian * length**2 / 2
            assert 0 < error <= derived <= delta * node.hessian * node.gradient**2
    # Central: of second order in δ where it is small.
    coarse, fine = (difference_errors(problem, case.theta, d).error for d in (2e-2, 1e-2))
    assert [a / b for a, b in zip(coarse, fine, strict=True)] == pytest.approx([4.0] * 5, rel=0.01)
