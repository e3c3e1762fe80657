"""The identities of the method, on random numbers; the engine's rounds are in engines/."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta, Contribution, Fleet, PlatformState
from fedmeta.core import randomness, tree
from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes
from fedmeta.core.tree import Tree
from fedmeta.data import NodeData, Samples
from fedmeta.models.losses import cross_entropy
from fedmeta.priors import SquaredEuclidean
from fedmeta.uplink.participation import Participation
from problems import (
    LAYOUTS,
    classification,
    double,
    engine_for,
    flat,
    largest_difference,
    paper_admm,
    softmax_regression,
    trace,
    unflat,
)

MODEL = double(softmax_regression(2, 2))
SIZE = tree.size(MODEL.theta)
OBJECTIVE = Objective(MODEL, cross_entropy)
INNER = Adaptation(0.3)
DATA = NodeData(
    Samples(
        torch.tensor([[1.0, -0.5], [0.2, 0.9], [-1.0, 0.3]]).double(),
        torch.tensor([0, 1, 1]),
        torch.ones(3).double(),
    ),
    Samples(
        torch.tensor([[0.7, 0.1], [-0.4, 1.2]]).double(),
        torch.tensor([0, 1]),
        torch.ones(2).double(),
    ),
)

positive = st.floats(0.05, 20)
seeds = st.integers(0, 10_000)


def vector(seed: int, scale: float = 1.0) -> Tree:
    draw = torch.Generator().manual_seed(seed)
    return unflat(scale * torch.randn(SIZE, generator=draw, dtype=torch.float64), MODEL.theta)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def facts(w: float, rho: float) -> Facts:
    return Facts(number(w), number(rho), number(1), torch.tensor(0), randomness.key(0))


def node_step(
    algorithm: ADMMFedMeta, theta: Tree, dual: Tree, w: float, rho: float
) -> tuple[Tensor, Tensor]:
    """v_i and y_i."""
    contribution, state = algorithm.node_step(OBJECTIVE, theta, {"dual": dual}, DATA, facts(w, rho))
    assert float(contribution.weight) == rho
    return flat(contribution.update), flat(state["dual"])


def slow_step(
    theta: Tensor, y: Tensor, w: float, rho: float, steps: int, eta: float
) -> tuple[Tensor, Tensor]:
    """θ_i and y_i by the letter of section 2."""
    local = theta
    for _ in range(steps):
        gradient, _ = meta_gradient(
            OBJECTIVE, MetaGradient(INNER), unflat(local, MODEL.theta), DATA, facts(w, rho)
        )
        local = local - eta * (w * flat(gradient) + y + rho * (local - theta))
    return local, y + rho * (local - theta)


def close(a: Tensor, b: Tensor, scale: float = 1.0) -> bool:
    return float((a - b).abs().max()) <= 1e-11 * (1 + scale)


@given(seeds, positive, positive, positive)
def test_dual_is_minus_the_weighted_meta_gradient_whatever_rho(
    seed: int, w: float, rho: float, other: float
) -> None:
    theta, dual = vector(seed), vector(seed + 1)
    gradient, _ = meta_gradient(OBJECTIVE, MetaGradient(INNER), theta, DATA, facts(w, rho))
    _, y = node_step(paper_admm(INNER), theta, dual, w, rho)
    _, y_other = node_step(paper_admm(INNER), theta, dual, w, other)
    assert close(y, -w * flat(gradient), w)
    assert torch.equal(y, y_other)


@given(seeds, positive, positive, st.integers(1, 4), st.floats(0.05, 1.5))
def test_one_vector_says_what_the_papers_two_do(
    seed: int, w: float, rho: float, steps: int, relative: float
) -> None:
    """v = 2y − y⁻ = (y + ρθ_i) − ρθ and θ_i = θ + (y − y⁻)/ρ, for any K and η."""
    theta, before = vector(seed), vector(seed + 1)
    eta = relative / rho
    algorithm = paper_admm(INNER, local_steps=steps, local_step_size=eta)
    v, y = node_step(algorithm, theta, before, w, rho)
    theta_i, y_slow = slow_step(flat(theta), flat(before), w, rho, steps, eta)
    scale = w + rho + float(y.abs().max())
    assert close(y, y_slow, scale)
    assert close(flat(theta) + (y - flat(before)) / rho, theta_i, scale)
    assert close(v, 2 * y - flat(before), scale)
    assert close(rho * flat(theta) + v, y_slow + rho * theta_i, scale)


@given(seeds, st.lists(st.tuples(positive, positive), min_size=1, max_size=4), st.floats(0, 5))
def test_platform_step_is_the_papers_formula(
    seed: int, nodes: list[tuple[float, float]], strength: float
) -> None:
    """θ⁺ = [Σ(y_i + ρ_iθ_i) − λ∇D] / Σρ_i, and [… + 2λθ_p] / (2λ + Σρ_i) for the proximal one."""
    theta, prior = vector(seed), vector(seed + 7)
    total_v, total_u = torch.zeros(SIZE).double(), torch.zeros(SIZE).double()
    for place, (w, rho) in enumerate(nodes):
        before = vector(seed + 20 + place)
        v, _ = node_step(paper_admm(INNER), theta, before, w, rho)
        theta_i, y = slow_step(flat(theta), flat(before), w, rho, 1, 1 / rho)
        total_v, total_u = total_v + v, total_u + y + rho * theta_i
    rhos = sum(rho for _, rho in nodes)
    total = Contribution(unflat(total_v, MODEL.theta), number(rhos), {})
    fleet = Fleet(number(rhos), len(nodes))
    pull = 2 * strength * (flat(theta) - flat(prior))
    expected = {
        "linearised": (total_u - pull) / rhos,
        "proximal": (total_u + 2 * strength * flat(prior)) / (2 * strength + rhos),
    }
    for platform, formula in expected.items():
        algorithm = paper_admm(
            INNER,
            platform=platform,
            prior=SquaredEuclidean(strength, prior),
        )
        state, metrics = algorithm.platform_step(algorithm.init(theta, fleet), total, fleet)
        assert close(flat(state.theta), formula, 100 * (1 + strength) / min(rhos, 1))
        dual = float(metrics["dual_residual"])
        assert dual == pytest.approx(float((pull - total_v).norm()), rel=1e-9, abs=1e-9)
        if platform == "linearised":
            step = float((flat(state.theta) - flat(theta)).norm())
            assert dual == pytest.approx(rhos * step, rel=1e-6, abs=1e-6)


@given(seeds, st.lists(positive, min_size=2, max_size=4), st.floats(0.1, 5))
def test_first_step_is_twice_a_gradient_step(seed: int, sizes: list[float], rho: float) -> None:
    theta, total = vector(seed), torch.zeros(SIZE).double()
    weights = [size / sum(sizes) for size in sizes]
    for w in weights:
        v, _ = node_step(paper_admm(INNER), theta, tree.zeros_like(theta), w, rho)
        total = total + v
    gradient, _ = meta_gradient(OBJECTIVE, MetaGradient(INNER), theta, DATA, facts(1, 1))
    rhos = rho * len(sizes)
    fleet = Fleet(number(rhos), len(sizes))
    algorithm = paper_admm(INNER, rho)
    state, metrics = algorithm.platform_step(
        algorithm.init(theta, fleet),
        Contribution(unflat(total, theta), number(rhos), {}),
        fleet,
    )
    assert close(flat(state.theta), flat(theta) - 2 / rhos * flat(gradient), 10)
    assert float(metrics["gradient_norm"]) == pytest.approx(float(flat(gradient).norm()))


@given(seeds, st.floats(0.1, 5), st.floats(0.1, 1.5), st.floats(0.05, 0.9))
def test_scaling_by_weight(seed: int, rho: float, eta: float, w: float) -> None:
    """ρ_i = w_iρ̃ and η = η̃/w_i: the node computes as one of weight 1, all scaled by w_i."""
    theta, before = vector(seed), vector(seed + 1)
    common: dict[str, Any] = {"local_steps": 2, "local_step_size": eta / (1 + rho)}
    scaled = paper_admm(INNER, rho, "weight", **common)
    plain = paper_admm(INNER, rho, **common)
    assert scaled.penalties(["a"], number(w).reshape(1)).tolist() == [rho * w]
    v, y = node_step(scaled, theta, tree.scale(w, before), w, rho * w)
    v_one, y_one = node_step(plain, theta, before, 1.0, rho)
    assert close(v, w * v_one, 10)
    assert close(y, w * y_one, 10)


def test_rules_agree_when_everyone_takes_part() -> None:
    data = classification(shape=(2,), classes=2)
    prior = SquaredEuclidean(0.3, vector(5))
    for platform in ("linearised", "proximal"):
        results = [
            trace(
                engine_for(
                    paper_admm(INNER, 0.5, rule=rule, platform=platform, prior=prior),
                    data,
                    MODEL,
                    LAYOUTS["batched-3"],
                ),
                MODEL,
                12,
            )
            for rule in ("participants", "stale")
        ]
        assert largest_difference(results[0].theta, results[1].theta) < 1e-12
        for name in ("dual_residual", "primal_residual", "meta_loss"):
            logged = [[m[name] for m in result.metrics] for result in results]
            assert logged[0] == pytest.approx(logged[1], abs=1e-11)
        assert "gradient_norm" not in results[1].metrics[-1]  # U does not tell Σy


def test_rules_differ_when_some_are_missing() -> None:
    data = classification(shape=(2,), classes=2)
    results = [
        trace(
            engine_for(
                paper_admm(INNER, 0.5, rule=rule),
                data,
                MODEL,
                participation=Participation(0.5),
            ),
            MODEL,
            5,
        )
        for rule in ("participants", "stale")
    ]
    assert largest_difference(results[0].theta, results[1].theta) > 1e-3


def test_a_prior_of_no_strength_is_no_prior_bit_for_bit() -> None:
    data = classification(shape=(2,), classes=2)
    for platform in ("linearised", "proximal"):
        ends = [
            flat(
                trace(
                    engine_for(paper_admm(INNER, 0.5, platform=platform, prior=prior), data, MODEL),
                    MODEL,
                    3,
                ).state.theta
            )
            for prior in (None, SquaredEuclidean(0.0, vector(3)))
        ]
        assert torch.equal(*ends)


def test_a_strong_prior_wins_with_the_proximal_step() -> None:
    data, prior = classification(shape=(2,), classes=2), vector(3)
    algorithm = paper_admm(INNER, 0.5, platform="proximal", prior=SquaredEuclidean(1e9, prior))
    end = trace(engine_for(algorithm, data, MODEL), MODEL, 5).theta[-1]
    assert float((end - flat(prior)).abs().max()) < 1e-6


def test_random_duals_are_drawn_once_per_node() -> None:
    data = classification(shape=(2,), classes=2)
    algorithm = paper_admm(INNER, 0.5, dual_deviation=0.01)
    engine = engine_for(algorithm, data, MODEL)
    duals = torch.cat(
        [leaf.reshape(5, -1) for leaf in engine.start(MODEL.theta)[1]["dual"].values()], 1
    )
    assert 0 < float(duals.abs().max()) <= 0.02
    assert len(duals.reshape(-1).unique()) == 5 * SIZE
    again = engine_for(algorithm, data, MODEL, LAYOUTS["loop"]).start(MODEL.theta)[1]["dual"]
    assert torch.equal(duals, torch.cat([leaf.reshape(5, -1) for leaf in again.values()], 1))
    # For K = 1 the dual is forgotten after a round, the step is not.
    end, plain = (
        trace(engine_for(each, data, MODEL), MODEL, 1)
        for each in (algorithm, paper_admm(INNER, 0.5))
    )
    difference = -duals.sum(0) / 2.5
    assert close(end.theta[0] - plain.theta[0], difference)


def test_settings() -> None:
    assert paper_admm(local_steps=3).passes == Passes(9, 3)
    assert paper_admm(INNER).adaptation(PlatformState({})) is INNER
    for arguments, named in [
        ({"penalty": 0.0}, "penalty ρ is 0.0"),
        ({"penalty": {"a": -1.0}}, "penalty ρ of node 'a'"),
        ({"penalty_unit": "nodes"}, "did you mean 'node'"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_step_size": 0.0}, "local_step_size"),
        ({"platform": "proximate"}, "did you mean 'proximal'"),
        ({"rule": "all"}, "rule"),
        ({"dual_deviation": -1.0}, "dual_deviation"),
        ({"curvature": "full"}, "curvature"),
    ]:
        with pytest.raises(SettingError, match=named):
            paper_admm(**arguments)


def test_penalties_by_name() -> None:
    weights = torch.tensor([0.25, 0.75])
    by_name = paper_admm(penalty={"b": 2.0, "a": 1.0, "c": 9.0})
    assert by_name.penalties(["a", "b"], weights).tolist() == [1, 2]
    with pytest.raises(SettingError, match=r"no ρ for node 'd' \(1 such nodes\)"):
        by_name.penalties(["a", "d"], weights)


def test_a_prior_of_another_model_is_refused_at_the_start() -> None:
    algorithm = paper_admm(prior=SquaredEuclidean(1.0, {"other": torch.zeros(1)}))
    with pytest.raises(ModelError, match=r"no tensor '0\.weight'"):
        engine_for(algorithm, classification(shape=(2,), classes=2), MODEL).start(MODEL.theta)
