"""The engine against the slow twin: same problem, same rounds, all paths and chunk sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedmeta.algorithms import (
    Algorithm,
    Centralised,
    FedAvg,
    FedMeta,
    PerFedAvg,
    PlatformOptimizer,
    Reptile,
)
from fedmeta.core.objective import Adaptation, Facts
from fedmeta.models.losses import cross_entropy
from fedmeta.priors import SquaredEuclidean
from fedmeta.uplink.participation import Participation
from oracle import twin
from problems import (
    LAYOUTS,
    Trace,
    classification,
    double,
    engine_for,
    flat,
    largest_difference,
    mlp,
    paper_admm,
    trace,
    twin_model,
    twin_nodes,
    unflat,
)

ROUNDS = 20
TOLERANCE = 1e-10
FEDERATION = classification(((4, 3), (2, 6), (5, 1), (3, 3)), shape=(2,), classes=2)
NODES = twin_nodes(FEDERATION)
W = twin.node_weights(NODES)
MODULE = mlp(2, 2, 2)
MODEL = double(MODULE)
THETA = flat(MODEL.theta)
PRIOR = 0.3 * torch.sin(torch.arange(len(THETA), dtype=torch.float64))
RHO = {f"n{i}": rho for i, rho in enumerate((0.3, 0.5, 0.4, 0.8))}
HALF, LOSSY = Participation(fraction=0.5), Participation(lost=0.3)


def prior(strength: float) -> SquaredEuclidean:
    return SquaredEuclidean(strength, unflat(PRIOR, MODEL.theta))


def by_node(facts: Facts) -> torch.Tensor:
    """A difference step that shrinks with the round."""
    return 1 / (7 * facts.round + 50) ** 1.5


@dataclass(frozen=True)
class Case:
    """An algorithm, and the twin's arguments for the same."""

    algorithm: Algorithm
    arguments: Mapping[str, Any]
    participation: Participation = Participation()
    function: Callable[..., Any] = twin.admm_fedmeta


ALPHA = {"alpha": 0.1}
INNER = Adaptation(step_size=0.1)
HEAD = torch.cat(
    [
        torch.full((leaf.numel(),), float(name.startswith("2.")))
        for name, leaf in MODEL.theta.items()
    ]
)
EVEN = [0.5] * 4

ADMM = {
    "plain": Case(paper_admm(INNER, 0.5), {**ALPHA, "rho": EVEN}),
    "K=3": Case(paper_admm(INNER, 0.5, local_steps=3), {**ALPHA, "rho": EVEN, "K": 3}),
    "K=1, explicit eta": Case(
        paper_admm(INNER, 0.5, local_step_size=0.7), {**ALPHA, "rho": EVEN, "eta": 0.7}
    ),
    "K=2, explicit eta": Case(
        paper_admm(INNER, 0.5, local_steps=2, local_step_size=0.7),
        {**ALPHA, "rho": EVEN, "K": 2, "eta": 0.7},
    ),
    "rho by node": Case(
        paper_admm(INNER, RHO, local_steps=2), {**ALPHA, "rho": list(RHO.values()), "K": 2}
    ),
    "rho by node and weight, explicit eta": Case(
        paper_admm(INNER, RHO, "weight", local_steps=2, local_step_size=1.5),
        {
            **ALPHA,
            "rho": [rho * w for rho, w in zip(RHO.values(), W, strict=True)],
            "K": 2,
            "eta": [1.5 / w for w in W],
        },
    ),
    "linearised prior": Case(
        paper_admm(INNER, RHO, prior=prior(0.2)),
        {**ALPHA, "rho": list(RHO.values()), "lam": 0.2, "theta_p": PRIOR},
    ),
    "proximal prior": Case(
        paper_admm(INNER, RHO, platform="proximal", prior=prior(5.0)),
        {
            **ALPHA,
            "rho": list(RHO.values()),
            "lam": 5.0,
            "theta_p": PRIOR,
            "platform": "proximal",
        },
    ),
    "participants, half": Case(paper_admm(INNER, RHO), {**ALPHA, "rho": list(RHO.values())}, HALF),
    "participants, lossy, prior": Case(
        paper_admm(INNER, RHO, prior=prior(0.2)),
        {**ALPHA, "rho": list(RHO.values()), "lam": 0.2, "theta_p": PRIOR},
        LOSSY,
    ),
    "participants, half, proximal": Case(
        paper_admm(INNER, RHO, platform="proximal", prior=prior(0.2)),
        {
            **ALPHA,
            "rho": list(RHO.values()),
            "lam": 0.2,
            "theta_p": PRIOR,
            "platform": "proximal",
        },
        HALF,
    ),
    "stale, everyone": Case(
        paper_admm(INNER, RHO, rule="stale"),
        {**ALPHA, "rho": list(RHO.values()), "rule": "stale"},
    ),
    "stale, half, K=2": Case(
        paper_admm(INNER, 0.8, rule="stale", local_steps=2),
        {**ALPHA, "rho": [0.8] * 4, "rule": "stale", "K": 2},
        HALF,
    ),
    "stale, lossy, prior": Case(
        paper_admm(INNER, RHO, rule="stale", prior=prior(0.2)),
        {**ALPHA, "rho": list(RHO.values()), "rule": "stale", "lam": 0.2, "theta_p": PRIOR},
        LOSSY,
    ),
    "stale, half, proximal": Case(
        paper_admm(INNER, RHO, rule="stale", platform="proximal", prior=prior(0.2)),
        {
            **ALPHA,
            "rho": list(RHO.values()),
            "rule": "stale",
            "lam": 0.2,
            "theta_p": PRIOR,
            "platform": "proximal",
        },
        HALF,
    ),
    "finite difference": Case(
        paper_admm(INNER, 0.5, curvature="finite-difference"),
        {**ALPHA, "rho": EVEN, "curvature": "finite-difference"},
    ),
    "finite difference of another schedule, 2 steps": Case(
        paper_admm(
            Adaptation(0.1, steps=2),
            0.5,
            curvature="finite-difference",
            difference=by_node,
        ),
        {
            **ALPHA,
            "rho": EVEN,
            "curvature": "finite-difference",
            "delta": lambda t: 1 / (7 * t + 50) ** 1.5,
            "steps": 2,
        },
    ),
    "no curvature": Case(
        paper_admm(INNER, 0.5, curvature="none"), {**ALPHA, "rho": EVEN, "curvature": "none"}
    ),
    "3 inner steps": Case(
        paper_admm(Adaptation(0.1, steps=3), 0.5), {**ALPHA, "rho": EVEN, "steps": 3}
    ),
    "head only": Case(
        paper_admm(Adaptation(0.3, steps=2, scope="head"), 0.5),
        {"alpha": 0.3, "rho": EVEN, "steps": 2, "mask": HEAD},
    ),
    "head only, finite difference": Case(
        paper_admm(Adaptation(0.3, scope=("2.*",)), 0.5, curvature="finite-difference"),
        {"alpha": 0.3, "rho": EVEN, "mask": HEAD, "curvature": "finite-difference"},
    ),
}

OTHERS = {
    "FedAvg": Case(
        FedAvg(0.2, local_steps=1), {"step_size": 0.2, "local_steps": 1}, function=twin.fedavg
    ),
    "FedAvg, 5 steps, half": Case(
        FedAvg(0.2, local_steps=5), {"step_size": 0.2, "local_steps": 5}, HALF, twin.fedavg
    ),
    "Per-FedAvg": Case(
        PerFedAvg(INNER, 0.3, local_steps=2),
        {**ALPHA, "beta": 0.3, "local_steps": 2},
        function=twin.per_fedavg,
    ),
    "Per-FedAvg, differences, half": Case(
        PerFedAvg(Adaptation(0.1, steps=2), 0.3, local_steps=2, curvature="finite-difference"),
        {**ALPHA, "beta": 0.3, "local_steps": 2, "curvature": "finite-difference", "steps": 2},
        HALF,
        twin.per_fedavg,
    ),
    "Per-FedAvg, first order": Case(
        PerFedAvg(INNER, 0.3, curvature="none"),
        {**ALPHA, "beta": 0.3, "local_steps": 1, "curvature": "none"},
        function=twin.per_fedavg,
    ),
    "FedMeta": Case(
        FedMeta(INNER, server=PlatformOptimizer("plain", 0.5)),
        {**ALPHA, "beta": 0.5},
        function=twin.fedmeta,
    ),
    "FedMeta, Adam, lossy": Case(
        FedMeta(INNER, server=PlatformOptimizer("adam", 0.05)),
        {**ALPHA, "beta": 0.05, "optimizer": "adam"},
        LOSSY,
        twin.fedmeta,
    ),
    "FedMeta, Adam, head only": Case(
        FedMeta(Adaptation(0.3, scope="head"), server=PlatformOptimizer("adam", 0.05)),
        {"alpha": 0.3, "beta": 0.05, "optimizer": "adam", "mask": HEAD},
        function=twin.fedmeta,
    ),
    "Reptile": Case(
        Reptile(0.2, local_steps=3, mixing=0.6),
        {"step_size": 0.2, "local_steps": 3, "epsilon": 0.6},
        function=twin.reptile,
    ),
    "Reptile, half": Case(
        Reptile(0.2, local_steps=3, mixing=0.6),
        {"step_size": 0.2, "local_steps": 3, "epsilon": 0.6},
        HALF,
        twin.reptile,
    ),
}


# Cases that see every chunk size; the rest see one batched layout and the loop.
THOROUGH = {"plain", "stale, lossy, prior", "participants, half", "FedAvg", "Reptile, half"}


def layouts(name: str) -> list[str]:
    return list(LAYOUTS) if name in THOROUGH else ["batched-3", "loop"]


def engine_trace(case: Case, layout: str) -> Trace:
    engine = engine_for(case.algorithm, FEDERATION, MODEL, LAYOUTS[layout], case.participation)
    return trace(engine, MODEL, ROUNDS)


def twin_run(case: Case) -> Any:
    """What the twin computes, with the sets that the engine counts."""
    engine = engine_for(case.algorithm, FEDERATION, MODEL, participation=case.participation)
    counted = [
        case.participation.counted(len(NODES), t, engine._draws).tolist()
        for t in range(1, ROUNDS + 1)
    ]
    return case.function(
        THETA,
        NODES,
        twin_model(MODULE),
        cross_entropy,
        rounds=ROUNDS,
        participation=counted,
        **case.arguments,
    )


@pytest.mark.parametrize("name", ADMM)
def test_admm_fedmeta(name: str) -> None:
    case = ADMM[name]
    expected = twin_run(case)
    moved = (expected.theta[-1] - THETA).abs().max()
    assert moved > 1e-2, "a problem on which nothing moves would prove nothing"
    for layout in layouts(name):
        got = engine_trace(case, layout)
        assert largest_difference(got.theta, expected.theta) <= TOLERANCE, layout
        duals = [
            flat({leaf: stack[i] for leaf, stack in got.nodes["dual"].items()})
            for i in range(len(NODES))
        ]
        assert largest_difference(duals, expected.y[-1]) <= TOLERANCE, layout
        if case.participation == Participation():
            told = {
                "meta_loss": expected.meta_loss,
                "primal_residual": expected.primal,
                "dual_residual": expected.dual,
            }
            if case.algorithm.rule == "participants":  # under "stale" the sums do not tell Σy
                told["gradient_norm"] = expected.grad_norm
            for logged, history in told.items():
                numbers = [metrics[logged] for metrics in got.metrics]
                assert numbers == pytest.approx(history, abs=TOLERANCE), (layout, logged)


@pytest.mark.parametrize("name", OTHERS)
def test_other_algorithms(name: str) -> None:
    case = OTHERS[name]
    expected = twin_run(case)
    assert (expected[-1] - THETA).abs().max() > 1e-2
    for layout in layouts(name):
        got = engine_trace(case, layout)
        assert largest_difference(got.theta, expected) <= TOLERANCE, layout


@pytest.mark.parametrize("name", ["half", "lossy"])
def test_participation_leaves_some_out_and_never_all(name: str) -> None:
    """What the cases above rely on: the sets vary, and no round is empty."""
    participation = {"half": HALF, "lossy": LOSSY}[name]
    engine = engine_for(FedAvg(), FEDERATION, MODEL, participation=participation)
    sets = [participation.counted(4, t, engine._draws).tolist() for t in range(1, ROUNDS + 1)]
    assert len({tuple(each) for each in sets}) > 3
    assert min(map(len, sets)) >= 1
    assert min(map(len, sets)) < 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "algorithm",
    [PerFedAvg(INNER, 0.3), FedMeta(INNER, server=PlatformOptimizer("plain", 0.5))],
    ids=["Per-FedAvg", "FedMeta"],
)
def test_meta_loss_is_that_of_theta(algorithm: Algorithm, layout: str) -> None:
    got = trace(engine_for(algorithm, FEDERATION, MODEL, LAYOUTS[layout]), MODEL, 3)
    thetas = [THETA, *got.theta[:-1]]
    expected = [
        twin.meta_loss(theta, NODES, twin_model(MODULE), cross_entropy, alpha=0.1)
        for theta in thetas
    ]
    assert [m["meta_loss"] for m in got.metrics] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_centralised_is_gradient_descent_on_the_pooled_data(layout: str) -> None:
    algorithm = Centralised(server=PlatformOptimizer("plain", 0.3))
    got = trace(engine_for(algorithm, FEDERATION, MODEL, LAYOUTS[layout]), MODEL, ROUNDS)
    pooled = torch.cat([x for node in NODES for x in (node.xs, node.xq)])
    labels = torch.cat([y for node in NODES for y in (node.ys, node.yq)])
    theta, thetas, values = THETA, [], []
    for _ in range(ROUNDS):
        values.append(float(twin.L(theta, pooled, labels, twin_model(MODULE), cross_entropy)))
        gradient = twin.grad_L(theta, pooled, labels, twin_model(MODULE), cross_entropy)
        theta = theta - 0.3 * gradient
        thetas.append(theta)
    assert largest_difference(got.theta, thetas) <= TOLERANCE
    assert [m["local_loss"] for m in got.metrics] == pytest.approx(values, abs=TOLERANCE)
