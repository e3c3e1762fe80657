"""What holds between the other algorithms; their rounds are held against the twin in engines/."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedmeta.algorithms import (
    ALGORITHMS,
    Algorithm,
    Centralised,
    FedAvg,
    FedMeta,
    LocalOnly,
    PerFedAvg,
    PlatformOptimizer,
    PlatformState,
    Reptile,
)
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation, Passes
from fedmeta.priors import SquaredEuclidean
from fedmeta.uplink.participation import Participation
from problems import (
    LAYOUTS,
    classification,
    double,
    engine_for,
    flat,
    largest_difference,
    mlp,
    paper_admm,
    trace,
)

DATA, MODEL = classification(), double(mlp())
THETA = flat(MODEL.theta)


def thetas(
    algorithm: Algorithm, rounds: int = 4, participation: Participation = Participation()
) -> list[torch.Tensor]:
    return trace(
        engine_for(algorithm, DATA, MODEL, participation=participation), MODEL, rounds
    ).theta


def test_reptile_with_mixing_1_is_fedavg() -> None:
    common = {"step_size": 0.2, "local_steps": 3, "batch_size": 2}
    reptile, fedavg = Reptile(mixing=1.0, **common), FedAvg(**common)
    for participation in (Participation(), Participation(0.5)):
        a, b = (thetas(each, participation=participation) for each in (reptile, fedavg))
        assert largest_difference(a, b) < 1e-14
    assert largest_difference(thetas(Reptile(0.2, 3, mixing=0.5)), thetas(FedAvg(0.2, 3))) > 1e-3


def test_one_step_of_fedavg_is_centralised_descent() -> None:
    assert (
        largest_difference(
            thetas(FedAvg(0.3, local_steps=1), 1),
            thetas(Centralised(server=PlatformOptimizer("plain", 0.3)), 1),
        )
        < 1e-13
    )


def test_one_step_of_per_fedavg_is_fedmeta() -> None:
    inner = Adaptation(0.1, steps=2)
    fedmeta = FedMeta(inner, server=PlatformOptimizer("plain", 0.3))
    assert largest_difference(thetas(PerFedAvg(inner, 0.3)), thetas(fedmeta)) < 1e-13


def test_local_only_never_changes_theta() -> None:
    result = trace(engine_for(LocalOnly(), DATA, MODEL), MODEL, 3)
    assert all(torch.equal(theta, THETA) for theta in result.theta)
    losses = [metrics["local_loss"] for metrics in result.metrics]
    assert losses[0] == losses[2] > 0
    assert LocalOnly(0.5, 7).adaptation(result.state) == Adaptation(0.5, 7)


@pytest.mark.parametrize(
    "algorithm",
    [
        paper_admm(),
        paper_admm(rule="stale"),
        FedAvg(),
        PerFedAvg(),
        FedMeta(server=PlatformOptimizer("adam", 0.1)),
        FedMeta(server="adam"),
        FedAvg(server=PlatformOptimizer("yogi", 0.1, averaging=0.5)),
        Reptile(),
        Centralised(),
    ],
    ids=lambda each: f"{each.name}-{getattr(each, 'rule', '')}",
)
@pytest.mark.parametrize("layout", ["batched-3", "loop"])
def test_a_round_without_uploads_changes_nothing(algorithm: Algorithm, layout: str) -> None:
    engine = engine_for(algorithm, DATA, MODEL, LAYOUTS[layout])
    state, nodes = engine.start(MODEL.theta)
    state, nodes, _ = engine.round(state, nodes, 1)  # so that moments and duals are not zero
    before = {slot: {n: leaf.clone() for n, leaf in tree.items()} for slot, tree in nodes.items()}
    engine._participation = Participation(lost=1 - 1e-12)
    result = engine.round(state, nodes, 2)
    assert result.metrics["counted"] == 0
    assert "meta_loss" not in result.metrics
    for name, leaf in state.theta.items():
        assert torch.allclose(result.state.theta[name], leaf, rtol=0, atol=1e-15)
    for slot, leaves in state.memory.items():
        assert all(torch.equal(result.state.memory[slot][n], leaf) for n, leaf in leaves.items())
    for slot, leaves in before.items():
        assert all(torch.equal(result.nodes[slot][name], leaf) for name, leaf in leaves.items())


@pytest.mark.parametrize("rule", ["participants", "stale"])
@pytest.mark.parametrize("platform", ["linearised", "proximal"])
def test_the_prior_pulls_even_when_every_upload_is_lost(rule: Any, platform: Any) -> None:
    prior = SquaredEuclidean(0.3, {n: leaf + 1 for n, leaf in MODEL.theta.items()})
    algorithm = paper_admm(Adaptation(0.1), 0.5, rule=rule, platform=platform, prior=prior)
    none = Participation(lost=1 - 1e-12)
    engine = engine_for(algorithm, DATA, MODEL, LAYOUTS["batched-3"], none)
    state, nodes = engine.start(MODEL.theta)
    after = engine.round(state, nodes, 1).state.theta
    total = 0.5 * 5  # Σρ; λ∇D = 0.6 (θ − θ_p) = −0.6 everywhere
    moved = 0.6 / total if platform == "linearised" else 0.6 / (total + 0.6)
    for name, leaf in MODEL.theta.items():
        assert torch.allclose(after[name], leaf + moved, atol=1e-12)


@pytest.mark.parametrize("rule", ["participants", "stale"])
def test_nodes_that_are_not_counted_keep_their_state(rule: str) -> None:
    algorithm = paper_admm(Adaptation(0.1), rule=rule)
    engine = engine_for(algorithm, DATA, MODEL, LAYOUTS["batched-3"], Participation(0.4))
    state, nodes = engine.start(MODEL.theta)
    counted = Participation(0.4).counted(5, 1, engine._draws).tolist()
    before = nodes["dual"]["0.weight"].clone()
    after = engine.round(state, nodes, 1).nodes["dual"]["0.weight"]
    changed = [i for i in range(5) if not torch.equal(before[i], after[i])]
    assert changed == counted
    assert 0 < len(counted) < 5


def test_costs_and_adaptations() -> None:
    inner, state = Adaptation(0.1, steps=2), PlatformState({})
    costs = {
        FedAvg(local_steps=5, inner=inner): Passes(5, 5),
        Reptile(local_steps=3, inner=inner): Passes(3, 3),
        PerFedAvg(inner, local_steps=2): Passes(12, 2),
        PerFedAvg(inner, local_steps=2, curvature="none"): Passes(4, 2),
        FedMeta(inner): Passes(6, 1),
        Centralised(inner=inner): Passes(1, 1),
    }
    for algorithm, passes in costs.items():
        assert algorithm.passes == passes, algorithm
        assert algorithm.adaptation(state) == inner
    assert LocalOnly().passes == Passes(0, 0)


def test_names() -> None:
    assert set(ALGORITHMS) == {
        "admm-fedmeta",
        "fedavg",
        "fedprox",
        "scaffold",
        "feddyn",
        "fedadmm",
        "per-fedavg",
        "fedmeta",
        "reptile",
        "prototypes",
        "local-only",
        "centralised",
        "ditto",
        "pfedme",
        "fedrep",
        "fedbabu",
        "fedewc",
        "fedlwf",
        "target",
    }
    assert all(isinstance(make(), Algorithm) for make in ALGORITHMS.values())


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        (FedAvg, {"step_size": -1.0}, "step_size"),
        (FedAvg, {"local_steps": 0}, "local_steps"),
        (FedAvg, {"batch_size": 0}, "batch_size"),
        (Reptile, {"mixing": 0.0}, "mixing"),
        (Reptile, {"step_size": 0.0}, "step_size"),
        (PerFedAvg, {"step_size": 0.0}, "step_size"),
        (PerFedAvg, {"local_steps": 0}, "local_steps"),
        (PerFedAvg, {"curvature": "x"}, "curvature"),
        (FedMeta, {"server": "adagrad"}, "server"),
        (FedMeta, {"curvature": "x"}, "curvature"),
        (LocalOnly, {"steps": 0}, "steps"),
        (LocalOnly, {"step_size": 0.0}, "step_size"),
    ],
)
def test_nonsense_is_refused(
    make: type[Algorithm], arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        make(**arguments)
