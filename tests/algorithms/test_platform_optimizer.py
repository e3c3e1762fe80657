"""The platform's step: directions by hand, lengths that are found, and every algorithm takes it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fedmeta.algorithms import (
    ADMMFedMeta,
    Algorithm,
    Centralised,
    FedAvg,
    FedMeta,
    PerFedAvg,
    PlatformOptimizer,
    Reptile,
    directions,
)
from fedmeta.algorithms.algorithm import Metrics
from fedmeta.algorithms.directions import Direction
from fedmeta.config.server_settings import as_stored_now
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core import tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from problems import LAYOUTS, classification, double, engine_for, flat, mlp, trace

ONE = torch.tensor(1.0, dtype=torch.float64)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
UPDATES = torch.tensor([[1.0, -2.0], [3.0, 0.5], [-1.0, 1.0]], dtype=torch.float64)
DATA, MODEL = classification(), double(mlp())


def walked(rule: PlatformOptimizer, updates: Tensor = UPDATES) -> list[Tensor]:
    """θ after every update, from zero."""
    theta: Tree = {"x": torch.zeros(2, dtype=torch.float64)}
    memory, places = rule.start(theta), []
    for update in updates:
        theta, memory, _ = rule.step(theta, memory, {"x": update}, None, ONE)
        places.append(theta["x"])
    return places


def test_plain_steps_by_hand() -> None:
    places = walked(PlatformOptimizer("plain", 0.5))
    assert torch.equal(places[-1], torch.tensor([1.5, -0.25], dtype=torch.float64))
    assert PlatformOptimizer().start({"x": ONE}) == {}


def test_momentum_by_hand() -> None:
    """m = 1; 0.9 + 3; 0.9·3.9 − 1 in the first coordinate."""
    places = walked(PlatformOptimizer("momentum", 0.1))
    first, second = (1 + 3.9 + 2.51) / 10, (-2 + (-1.8 + 0.5) + (0.9 * -1.3 + 1)) / 10
    assert places[-1].tolist() == pytest.approx([first, second], rel=1e-12)


@pytest.mark.parametrize("direction", ["adam", "yogi"])
def test_adam_and_yogi_by_hand(direction: Direction) -> None:
    places = walked(PlatformOptimizer(direction, 0.1))
    for column in range(2):
        m = s = x = 0.0
        for t, delta in enumerate(UPDATES[:, column].tolist(), 1):
            m = 0.9 * m + 0.1 * delta
            if direction == "adam":
                s = 0.999 * s + 0.001 * delta**2
            else:
                s += 0.001 * math.copysign(1.0, delta**2 - s) * delta**2
            x += 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(s / (1 - 0.999**t)) + 1e-8)
            assert float(places[t - 1][column]) == pytest.approx(x, rel=1e-9)


def test_yogi_forgets_slower_than_adam() -> None:
    """After a huge update many small ones lower Yogi's squares by what they are, not by a share."""
    updates = torch.tensor([[100.0, 100.0], *[[0.1, 0.1]] * 50], dtype=torch.float64)
    squares = {}
    for direction in ("adam", "yogi"):
        rule = PlatformOptimizer(direction, 0.1)  # type: ignore[arg-type]
        theta: Tree = {"x": torch.zeros(2, dtype=torch.float64)}
        memory = rule.start(theta)
        for update in updates:
            theta, memory, _ = rule.step(theta, memory, {"x": update}, None, ONE)
        squares[direction] = float(memory["moment2"]["x"][0])
    assert squares["yogi"] == pytest.approx(0.001 * (1e4 - 50 * 0.01), rel=1e-9)
    assert squares["adam"] == pytest.approx(10 * 0.999**50, rel=1e-3)


def test_orthogonal_steps_have_one_length() -> None:
    theta: Tree = {"w": torch.zeros(3, 3, dtype=torch.float64)}
    rule = PlatformOptimizer("orthogonal", 0.1)
    update = {"w": torch.diag(torch.tensor([50.0, 2.0, 1.0], dtype=torch.float64))}
    after, _, _ = rule.step(theta, rule.start(theta), update, None, ONE)
    assert ((after["w"].diag() > 0.07) & (after["w"].diag() < 0.12)).all()


def test_the_average_of_fixed_steps() -> None:
    """Equal shares of the first two, then a half of the new one."""
    rule = PlatformOptimizer("plain", 1.0, averaging=0.5)
    theta: Tree = {"x": torch.zeros(1, dtype=torch.float64)}
    memory = rule.start(theta)
    for update in (1.0, 2.0, 4.0):
        update_tree = {"x": torch.tensor([update], dtype=torch.float64)}
        theta, memory, _ = rule.step(theta, memory, update_tree, None, ONE)
    # θ: 1, 3, 7; averages: 1, 2, (2 + 7)/2
    assert rule.model(theta, memory)["x"].tolist() == [4.5]
    assert PlatformOptimizer().model(theta, {}) is theta


def test_all_directions_are_as_long_as_an_orthogonal_one() -> None:
    draw = torch.Generator().manual_seed(0)
    update = {
        "w": torch.randn(4, 9, generator=draw),
        "kernel": torch.randn(6, 2, 1, 1, generator=draw),
        "b": torch.randn(4, generator=draw),
        "s": torch.tensor(3.0),
    }
    wanted = 4 + 2 * 3 + 4 + 1
    for direction in ("plain", "momentum", "adam", "yogi"):
        memory = directions.remembered(direction, directions.start(direction, update), update)
        way = directions.along(direction, memory, update)
        way = directions.as_long_as_orthogonal(direction, way)
        assert float(tree.squared_norm(way)) == pytest.approx(wanted, rel=1e-5)


def searched(direction: Direction, penalty: float, size: float) -> tuple[Tree, list[Metrics]]:
    """On a quadratic of curvatures between 1 and 30, whose optimum is about that far away."""
    rule = PlatformOptimizer(direction, "auto", 0.0, penalty, longest_step=0.1)
    draw = torch.Generator().manual_seed(1)
    curvature = torch.logspace(0, 1.5, 12, dtype=torch.float64).reshape(3, 4)
    theta: Tree = {"w": size * torch.randn(3, 4, generator=draw, dtype=torch.float64)}
    memory, logged = rule.start(theta), []
    for _ in range(300):
        loss = 0.5 * (curvature * theta["w"].square()).sum()
        slope = {"w": -curvature * theta["w"]}
        theta, memory, numbers = rule.step(theta, memory, slope, loss, ONE)
        assert tree.is_finite(theta)
        logged.append(numbers)
    return memory["accepted"], logged


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("penalty", [1e3, 1e-5])
@pytest.mark.parametrize("size", [1.0, 0.03])
def test_a_length_is_found_for_every_direction(
    direction: Direction, penalty: float, size: float
) -> None:
    """Also from a first step 1e6 times too long, and where the longest one is too long itself."""
    place, logged = searched(direction, penalty, size)
    losses = [float(each["loss"]) for each in logged]
    assert max(losses) < 2 * losses[0]
    assert min(losses[-50:]) < 0.15 * losses[0]
    assert float(place["w"].abs().max()) < 1.5 * size
    if size < 1:
        assert sum(float(each["rejected"]) for each in logged) >= 1


@pytest.mark.parametrize("direction", ["momentum", "adam", "yogi"])
def test_after_a_rejected_round_nothing_older_counts(direction: Direction) -> None:
    rule = PlatformOptimizer(direction, "auto", first_penalty=200.0)
    theta: Tree = {"x": torch.zeros(2, dtype=torch.float64)}
    memory = rule.start(theta)
    for update, loss in zip(UPDATES[:2], (1.0, 0.9), strict=True):
        theta, memory, _ = rule.step(theta, memory, {"x": 100 * update}, ONE * loss, ONE)
    accepted, good = memory["accepted"], {"x": 100 * UPDATES[1]}
    theta, memory, numbers = rule.step(theta, memory, {"x": UPDATES[2]}, ONE * 50, ONE)
    assert float(numbers["rejected"]) == 1
    alone = directions.remembered(direction, directions.start(direction, good), good)
    way = directions.as_long_as_orthogonal(direction, directions.along(direction, alone, good))
    expected = accepted["x"] + way["x"] / float(numbers["penalty"])
    assert torch.allclose(theta["x"], expected, rtol=1e-12)


def ends(algorithm: Algorithm, rounds: int = 5, layout: str = "batched-all") -> list[Tensor]:
    return trace(engine_for(algorithm, DATA, MODEL, LAYOUTS[layout]), MODEL, rounds).theta


def test_plain_is_fedavg_bit_for_bit() -> None:
    assert FedAvg(server="plain") == FedAvg()
    for one, other in zip(
        ends(FedAvg(local_steps=2, server="plain")), ends(FedAvg(local_steps=2)), strict=True
    ):
        assert torch.equal(one, other)


ALGORITHMS = {
    "fedavg": FedAvg(0.2, 2),
    "reptile": Reptile(0.2, 3),
    "per-fedavg": PerFedAvg(Adaptation(0.1), 0.2),
    "fedmeta": FedMeta(Adaptation(0.1)),
    "centralised": Centralised(),
    "learned": FedAvg(0.2, inner=Adaptation(0.1, learned="tensor")),
}


@pytest.mark.parametrize("server", ["momentum", "adam", "yogi", "orthogonal"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_with_every_server(name: str, server: str) -> None:
    algorithm: Any = replace(ALGORITHMS[name], server=server)  # type: ignore[type-var]
    faster = replace(algorithm.server, longest_step=0.05, first_penalty=50.0)
    algorithm = replace(algorithm, server=faster)
    assert algorithm.needs_losses
    result = trace(engine_for(algorithm, DATA, MODEL), MODEL, 25)
    key = "local_loss" if "local_loss" in result.metrics[0] else "meta_loss"
    losses = [each[key] for each in result.metrics]
    assert losses[-1] < 0.7 * losses[0]
    assert {"penalty", "rejected", "gradient_norm", "step_norm"} <= {*result.metrics[-1]}
    model = flat(algorithm.model(result.state))
    assert not torch.equal(model, result.theta[-1])  # that one is still on trial
    learned = algorithm.inner.learned != "none"
    assert (algorithm.adaptation(result.state).factors is not None) == learned


def test_the_promise_of_displacements_is_that_of_their_gradients() -> None:
    """One step of FedAvg is a gradient: under "auto" both make the same steps, whatever η is."""
    rule = PlatformOptimizer("adam", "auto", 0.9)
    wanted = trace(engine_for(Centralised(server=rule), DATA, MODEL), MODEL, 12)
    for eta in (0.5, 1e-3):
        found = trace(engine_for(FedAvg(eta, server=rule), DATA, MODEL), MODEL, 12)
        assert float((found.theta[-1] - wanted.theta[-1]).abs().max()) < 1e-8
        for one, other in zip(found.metrics, wanted.metrics, strict=True):
            assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)


def test_extrapolation_is_a_part_of_its_own() -> None:
    """Without it ADMM-FedMeta with K = 1 is FedMeta with the same server step, bit for bit."""
    rule = PlatformOptimizer("orthogonal", "auto", 0.9)
    admm = ADMMFedMeta(Adaptation(0.1), resplit="none", extrapolate=False)
    plain = FedMeta(Adaptation(0.1), server=rule)
    assert all(torch.equal(a, b) for a, b in zip(ends(admm), ends(plain), strict=True))
    with_it = ends(replace(admm, extrapolate=True))
    assert torch.equal(with_it[0], ends(plain)[0])  # V = Y in the first round
    assert not torch.equal(with_it[2], ends(plain)[2])


@pytest.mark.parametrize(
    ("older", "server"),
    [
        ({"algorithm": "fedmeta", "own": {"step_size": 0.02}}, PlatformOptimizer("plain", 0.02)),
        ({"algorithm": "fedmeta", "own": {"optimizer": "adam"}}, PlatformOptimizer("adam", 0.1)),
        (
            {"algorithm": "centralised", "own": {"optimizer": "sgd", "step_size": 0.3}},
            PlatformOptimizer("plain", 0.3),
        ),
        (
            {"algorithm": "admm-fedmeta", "own": {"longest_step": 0.02, "averaging": 0.5}},
            PlatformOptimizer("orthogonal", "auto", 0.5, longest_step=0.02),
        ),
        (
            {"algorithm": "admm-fedmeta", "own": {"first_penalty": 10.0}},
            PlatformOptimizer("orthogonal", "auto", 0.9, 10.0),
        ),
    ],
)
def test_older_settings_are_understood(older: dict[str, Any], server: PlatformOptimizer) -> None:
    name = older["algorithm"]
    spec = RunSpec.from_dict({"algorithm": name, "algorithms": {name: older["own"]}})
    assert spec.algorithm.server == server  # type: ignore[attr-defined]
    stored = as_stored_now({"algorithm": {"name": name, **older["own"]}})["algorithm"]
    assert stored["server"]["direction"] == server.direction
    assert not {*older["own"]} & {*stored}


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ("yogi", PlatformOptimizer("yogi", "auto", 0.9)),
        ({"direction": "adam"}, PlatformOptimizer("adam", "auto", 0.9)),
        ({"direction": "adam", "step_size": 0.01}, PlatformOptimizer("adam", 0.01)),
        ({"step_size": 0.5}, PlatformOptimizer("plain", 0.5)),
        ({"direction": "momentum", "averaging": 0.5}, PlatformOptimizer("momentum", "auto", 0.5)),
    ],
)
def test_names_and_tables(given: Any, server: PlatformOptimizer) -> None:
    spec = RunSpec.from_dict({"algorithm": "fedavg", "algorithms": {"fedavg": {"server": given}}})
    assert spec.algorithm == FedAvg(server=server)
    assert RunSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"direction": "adma"}, "did you mean 'adam'"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": "automatic"}, "step_size"),
        ({"averaging": 1.0}, "averaging"),
        ({"first_penalty": 0.0}, "first_penalty"),
        ({"longest_step": 0.0}, "longest_step"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        PlatformOptimizer(**wrong)


def test_a_table_on_top_of_a_name_keeps_what_the_name_says() -> None:
    named = {"algorithm": "fedmeta", "algorithms": {"fedmeta": {"server": "orthogonal"}}}
    longer = {"algorithms": {"fedmeta": {"server": {"longest_step": 0.02}}}}
    found: Any = RunSpec.from_dict(merged([named, longer])).algorithm
    assert found.server == replace(PlatformOptimizer.of("orthogonal"), longest_step=0.02)
