"""The search for a length: it gets down from anywhere, takes bad rounds back, needs sums alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta, Contribution, Fleet, PlatformOptimizer
from fedmeta.algorithms.algorithm import Metrics
from fedmeta.config.execution import Execution
from fedmeta.core import tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from fedmeta.engine.local import LocalEngine
from fedmeta.priors import SquaredEuclidean
from fedmeta.uplink.participation import Participation
from problems import LAYOUTS, classification, double, engine_for, softmax_regression, trace

ALL = torch.tensor(1.0, dtype=torch.float64)
STARTS = (1e-6, 1e3, 1e4, 1e6)
PLAIN = ADMMFedMeta(Adaptation(0.3), resplit="none")
MODEL = double(softmax_regression())
FAR = {name: leaf + 0.5 for name, leaf in MODEL.theta.items()}


def start(theta: Tree, penalty: float) -> dict[str, Tree]:
    return PlatformOptimizer("orthogonal", "auto", first_penalty=penalty).start(theta)


def step(
    theta: Tree,
    memory: dict[str, Tree],
    dual: Tree,
    loss: Tensor,
    share: Tensor,
    averaging: float = 0.0,
) -> tuple[Tree, dict[str, Tree], Metrics]:
    """The platform's step of ADMM-FedMeta: the direction is made of 2Y − Y⁻."""
    rule = PlatformOptimizer("orthogonal", "auto", averaging)
    ahead = {
        n: y if memory["search"]["rounds"] == 0 else 2 * y - memory["dual"][n]
        for n, y in dual.items()
    }
    return rule.step(theta, memory, dual, loss, share, ahead)


def bowl(x: Tensor) -> Tensor:
    """A quadratic whose curvatures lie four orders of magnitude apart."""
    return 0.5 * (torch.logspace(0, 4, len(x), dtype=x.dtype) * x.square()).sum()


def valley(x: Tensor) -> Tensor:
    """Rosenbrock's."""
    return (1 - x[::2]).square().sum() + 10 * (x[1::2] - x[::2].square()).square().sum()


def cliff(x: Tensor) -> Tensor:
    """Not a number half a unit from the start on one side."""
    return x.square().sum() - (1.5 - x).log().sum()


def search(
    function: Callable[[Tensor], Tensor],
    penalty: float,
    rounds: int = 100,
    noise: float = 0.0,
) -> tuple[list[float], Tree, int]:
    """Accepted losses, the last accepted point, and how many rounds were rejected."""
    draw = torch.Generator().manual_seed(3)
    theta: Tree = {"x": torch.randn(20, generator=draw, dtype=torch.float64)}
    theta = {"x": theta["x"].clamp(max=1.0)}
    memory, losses, rejected = start(theta, penalty), [], 0
    for _ in range(rounds):
        x = theta["x"].clone().requires_grad_()
        value = function(x)
        (slope,) = torch.autograd.grad(value, x)
        seen = value.detach() * (1 + noise * torch.randn((), generator=draw))
        theta, memory, numbers = step(theta, memory, {"x": -slope}, seen, ALL)
        losses.append(float(numbers["loss"]))
        rejected += int(numbers["rejected"])
        assert tree.is_finite(theta)
    return losses, memory["accepted"], rejected


@pytest.mark.parametrize("penalty", STARTS)
@pytest.mark.parametrize("function", [bowl, valley, cliff])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_gets_down_from_any_start(
    function: Callable[[Tensor], Tensor], penalty: float, noise: float
) -> None:
    losses, place, _ = search(function, penalty, noise=noise)
    begin = losses[0] / (1 + noise)
    least = -20.0 if function is cliff else 0.0
    assert float(function(place["x"])) - least < 0.5 * (begin - least)


def test_noise_does_not_stop_it() -> None:
    """A loss that fluctuates must not be taken for failure again and again."""
    _, _, rejected = search(valley, 1e3, rounds=200, noise=0.12)
    assert rejected < 40


def test_a_start_that_is_far_too_bold_is_shortened_at_once() -> None:
    theta = {"x": torch.full((4,), 3.0, dtype=torch.float64)}
    after, _, numbers = step(theta, start(theta, 1e-6), theta, torch.tensor(1.0).double(), ALL)
    assert after["x"].tolist() == pytest.approx([3.01] * 4)
    assert float(numbers["penalty"]) == pytest.approx(100)


def test_first_step_goes_along_the_gradient_by_one_over_rho() -> None:
    theta = {"x": torch.zeros(3, dtype=torch.float64)}
    dual = {"x": torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)}
    after, _, numbers = step(theta, start(theta, 500.0), dual, torch.tensor(2.0).double(), ALL)
    length = 3**0.5 / 500  # one five-hundredth in the root mean square
    assert after["x"].tolist() == pytest.approx([0.6 * length, -0.8 * length, 0.0])
    assert float(numbers["penalty"]) == 500


def test_what_is_averaged_is_the_extrapolated_dual() -> None:
    """m = 0.1 Σ 0.9^k V with V = Y in the first round, then 2Y − Y⁻."""
    theta = {"x": torch.zeros(2, dtype=torch.float64)}
    duals = torch.tensor([[1.0, 2.0], [3.0, -1.0], [2.0, 2.0]], dtype=torch.float64)
    memory = start(theta, 10.0)
    for dual, loss in zip(duals, (3.0, 2.0, 1.0), strict=True):
        theta, memory, _ = step(
            theta, memory, {"x": dual}, torch.tensor(loss, dtype=torch.float64), ALL
        )
    v = [duals[0], 2 * duals[1] - duals[0], 2 * duals[2] - duals[1]]
    expected = 0.1 * (0.81 * v[0] + 0.9 * v[1] + v[2])
    assert torch.allclose(memory["contribution"]["x"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("loss", "slope", "factor"),
    [(1.5, 1.0, 2), (9.0, 1.0, 10), (float("nan"), 1.0, 10), (0.5, float("inf"), 10)],
)
def test_a_bad_round_is_taken_back(loss: float, slope: float, factor: float) -> None:
    theta = {"x": torch.ones(2, dtype=torch.float64)}
    dual = {"x": torch.tensor([100.0, -200.0], dtype=torch.float64)}
    memory = start(theta, 200.0)
    tried, memory, _ = step(theta, memory, dual, torch.tensor(1.0).double(), ALL)
    bad = {"x": torch.full((2,), slope, dtype=torch.float64)}
    again, after, numbers = step(tried, memory, bad, torch.tensor(loss).double(), ALL)
    assert float(numbers["rejected"]) == 1
    assert float(numbers["loss"]) == 1
    assert float(after["search"]["penalty"]) == pytest.approx(200 * factor)
    for name in ("accepted", "dual"):
        assert torch.equal(after[name]["x"], memory[name]["x"])
    shorter = (tried["x"] - theta["x"]) / factor
    assert torch.allclose(again["x"], theta["x"] + shorter, rtol=1e-6)


def test_luck_does_not_end_the_search() -> None:
    """One loss far below all that follow must not make steps vanish."""
    theta = {"x": torch.zeros(1, dtype=torch.float64)}
    memory = start(theta, 1e3)
    draw = torch.Generator().manual_seed(1)
    for number in range(200):
        noisy = 0.05 if number == 20 else 1 + 0.5 * float(torch.rand((), generator=draw))
        theta, memory, _ = step(
            theta, memory, {"x": torch.ones(1).double()}, torch.tensor(noisy).double(), ALL
        )
    assert float(memory["search"]["penalty"]) < 2e5


def test_a_lucky_first_loss_does_not_stop_it() -> None:
    """However flat and quiet the losses are that follow."""
    for noise in (0.0, 0.005, 0.02):
        draw = torch.Generator().manual_seed(6)
        theta: Tree = {"x": torch.full((30,), 0.2, dtype=torch.float64)}
        memory, rejected = start(theta, 1e3), 0
        for number in range(200):
            true = 1 + theta["x"].square().sum()
            seen = true * (1 + noise * torch.randn((), generator=draw, dtype=torch.float64))
            seen = 0.55 * seen if number == 0 else seen
            theta, memory, numbers = step(theta, memory, {"x": -2 * theta["x"]}, seen, ALL)
            rejected += int(numbers["rejected"])
        assert float(memory["accepted"]["x"].abs().max()) < 0.05
        assert rejected < 20


def test_rho_stays_finite() -> None:
    """Whatever losses do, and for however long."""
    for losses in (
        [1.0] + [1.8] * 300,
        [1.0] + [float("nan")] * 300,
        [0.0] * 300,
        [1.0, 9.0] * 150,
    ):
        theta: Tree = {"x": torch.ones(3)}
        memory = start(theta, 1e3)
        for loss in losses:
            theta, memory, numbers = step(
                theta, memory, {"x": torch.ones(3)}, torch.tensor(loss), torch.tensor(1.0)
            )
            assert all(bool(value.isfinite()) for value in numbers.values())
        assert tree.is_finite(theta)


def test_a_slope_that_is_no_number_is_never_taken_for_luck() -> None:
    """However often: steps go on getting shorter, though the losses there are numbers."""
    theta: Tree = {"x": torch.ones(2)}
    memory = start(theta, 1e3)
    for slope in (1.0, *[float("inf")] * 6):
        dual, loss = {"x": torch.full((2,), slope)}, torch.tensor(1.0)
        theta, memory, numbers = step(theta, memory, dual, loss, torch.tensor(1.0))
    assert float(numbers["penalty"]) == pytest.approx(1e9)
    assert tree.is_finite(theta)


@pytest.mark.parametrize("between", [1.25, 2.6])
def test_a_second_look_gives_rho_back(between: float) -> None:
    """After a mere rejection as after a blow-up: what is no better was not the step's fault."""
    theta: Tree = {"x": torch.ones(2, dtype=torch.float64)}
    dual = {"x": torch.full((2,), 1000.0, dtype=torch.float64)}
    memory = start(theta, 5e3)
    for loss in (1.0, 1.0, between, 1.25):
        theta, memory, numbers = step(theta, memory, dual, torch.tensor(loss).double(), ALL)
    assert float(numbers["rejected"]) == 1
    assert float(numbers["penalty"]) == pytest.approx(2500)


def test_contributions_that_point_uphill_do_not_lead_there() -> None:
    """As difference quotients gone wrong do: downhill at first, then up, however short the step."""
    theta = {"x": torch.full((5,), 0.5, dtype=torch.float64)}
    memory, losses = start(theta, 1e3), []
    for number in range(300):
        downhill = -theta["x"] if number < 60 else theta["x"]
        loss = theta["x"].square().sum()
        theta, memory, numbers = step(theta, memory, {"x": downhill}, loss, ALL)
        losses.append(float(numbers["loss"]))
    assert min(losses) < 0.1 * losses[0]
    assert losses[-1] < 0.5 * losses[0]


def test_a_rise_that_no_step_of_its_length_explains_is_not_held_against_it() -> None:
    """A lucky first loss: the step promised next to nothing, so the rise was not its doing."""
    theta = {"x": torch.zeros(4, dtype=torch.float64)}
    dual = {"x": torch.full((4,), 0.1, dtype=torch.float64)}
    memory = start(theta, 1e3)
    for loss in (1.0, 1.5):
        theta, memory, numbers = step(theta, memory, dual, torch.tensor(loss).double(), ALL)
    assert float(numbers["rejected"]) == 0
    assert float(numbers["penalty"]) == 500


def test_steps_lost_in_noise_become_longer() -> None:
    """However noisy the losses are at the start, ρ does not stay where steps are too short."""
    draw = torch.Generator().manual_seed(4)
    theta: Tree = {"x": torch.full((30,), 0.3, dtype=torch.float64)}
    memory = start(theta, 1e4)
    for _ in range(100):
        slope = 2 * theta["x"]
        noise = 1 + 0.4 * torch.randn((), generator=draw, dtype=torch.float64)
        loss = (5 + theta["x"].square().sum()) * noise.abs()
        theta, memory, _ = step(theta, memory, {"x": -slope}, loss, ALL)
    assert float(memory["accepted"]["x"].abs().max()) < 0.1


def test_the_model_is_an_average_of_what_was_accepted() -> None:
    """Equal shares at first, then β of the past; a round that is taken back has no part in it."""
    theta = {"x": torch.zeros(1, dtype=torch.float64)}
    memory, taken = start(theta, 1e3), []
    for loss in (1.0, 0.9, 0.8, 50.0, 0.7, 0.6):
        tried = theta
        theta, memory, numbers = step(
            theta, memory, {"x": torch.ones(1).double()}, torch.tensor(loss).double(), ALL, 0.75
        )
        taken += [tried["x"]] if numbers["rejected"] == 0 else []
    expected = sum(taken[:4]) / 4
    expected = 0.75 * expected + 0.25 * taken[4]
    assert len(taken) == 5
    assert torch.allclose(memory["average"]["x"], expected, rtol=1e-12)


def test_rounds_of_the_engine_agree_on_every_path() -> None:
    ends = [trace(_engine(PLAIN, layout), MODEL, 15).theta for layout in LAYOUTS.values()]
    for end in ends[1:]:
        assert float((end[-1] - ends[0][-1]).abs().max()) < 1e-10


def test_lost_uploads_do_no_harm() -> None:
    engine = _engine(PLAIN, participation=Participation(0.6, lost=0.3))
    state, nodes = engine.start(MODEL.theta)
    for number in range(1, 61):
        state, nodes, reading = engine.round(state, nodes, number)
        assert reading.finite
    assert _loss(PLAIN.model(state)) < 0.8 * _loss(MODEL.theta)


def test_no_upload_changes_nothing() -> None:
    theta = MODEL.theta
    state = PLAIN.init(theta, Fleet(torch.tensor(1.0), 3))
    none = Contribution(tree.zeros_like(theta), torch.tensor(0.0), {})
    after, numbers = PLAIN.platform_step(state, none, Fleet(torch.tensor(1.0), 3))
    assert after is state
    assert numbers == {}


def test_the_prior_pulls() -> None:
    """With a strong prior the search ends near θ_p, with none it does not."""
    distances = []
    for strength in (0.0, 100.0):
        algorithm = replace(PLAIN, prior=SquaredEuclidean(strength, FAR))
        state = trace(_engine(algorithm), MODEL, 100).state
        gap = tree.subtract(algorithm.model(state), FAR)
        distances.append(float(tree.squared_norm(gap).sqrt()))
    assert distances[1] < 0.3 * distances[0]


def test_no_prior_is_strength_zero_bit_for_bit() -> None:
    zero = replace(PLAIN, prior=SquaredEuclidean(0.0, FAR))
    with_it, without = (trace(_engine(each), MODEL, 10).theta[-1] for each in (zero, PLAIN))
    assert torch.equal(with_it, without)


def test_the_model_is_one_that_was_judged() -> None:
    engine = _engine(PLAIN)
    state, nodes = engine.start(MODEL.theta)
    tried = state.theta
    state, nodes, _ = engine.round(state, nodes, 1)
    assert all(torch.equal(leaf, tried[name]) for name, leaf in PLAIN.model(state).items())
    assert not torch.equal(state.theta["0.weight"], tried["0.weight"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"local_step_size": 0.1},
        {"penalty_unit": "weight"},
        {"platform": "proximal"},
        {"rule": "stale"},
        {"dual_deviation": 0.1},
    ],
)
def test_what_needs_a_penalty_that_nodes_know(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="penalty is 'auto': give a penalty as a number"):
        ADMMFedMeta(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"penalty": "automatic"},
        {"server": "orthogonl"},
        {"server": 0.5},
        {"server": PlatformOptimizer("orthogonal", 0.1)},
        {"penalty": 0.3, "extrapolate": False},
        {"penalty": 0.3, "local_steps": 2, "duals": False},
        {"duals": False},
    ],
)
def test_bad_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        ADMMFedMeta(**wrong)  # type: ignore[arg-type]


def _engine(
    algorithm: ADMMFedMeta,
    layout: Execution = LAYOUTS["batched-all"],
    participation: Participation = Participation(),
) -> LocalEngine:
    return engine_for(algorithm, classification(), MODEL, layout, participation)


def _loss(theta: Tree) -> float:
    """F(θ) over all nodes."""
    engine = _engine(PLAIN)
    return float(engine.round(*engine.start(theta), 1).metrics["meta_loss"])
