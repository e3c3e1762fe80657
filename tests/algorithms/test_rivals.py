"""FedProx, SCAFFOLD, FedDyn and FedADMM: against their slow twins, and against closed forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmeta.algorithms import (
    Algorithm,
    FedADMM,
    FedAvg,
    FedDyn,
    FedProx,
    Fleet,
    PlatformState,
    Scaffold,
)
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation, Objective, Passes
from fedmeta.core.storage import payload_bytes
from fedmeta.data import Federation, Node, Task
from fedmeta.engine import recording
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.local import LocalEngine
from fedmeta.models import losses
from fedmeta.models.losses import cross_entropy
from fedmeta.training.train import train
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink
from oracle import rivals
from oracle.rivals import Rounds
from problems import (
    DOUBLE,
    LAYOUTS,
    PLAIN,
    Trace,
    classification,
    double,
    engine_for,
    flat,
    job_of,
    largest_difference,
    mlp,
    together,
    trace,
    twin_model,
    twin_nodes,
)

DATA, MODULE = classification(), mlp()
MODEL, NODES = double(MODULE), twin_nodes(DATA)
WEIGHTS = [node.size / sum(each.size for each in DATA.sources) for node in DATA.sources]
LEARNED = Adaptation(0.3, 2, learned="tensor", learning_scale=2.0)
LOSSY = Participation(lost=0.4)


@dataclass(frozen=True)
class Case:
    """An algorithm, its twin with the same hyper-parameters, and the slot of what nodes keep."""

    algorithm: FedAvg
    twin: Callable[..., Rounds]
    arguments: Mapping[str, Any]
    slot: str | None = None


LOCAL = {"eta": 0.2, "steps": 3}
CASES = {
    "fedprox": Case(FedProx(0.2, 3, proximity=0.7), rivals.fedprox, {**LOCAL, "mu": 0.7}),
    "scaffold": Case(Scaffold(0.2, 3), rivals.scaffold, LOCAL, "control"),
    "feddyn": Case(
        FedDyn(0.2, 3, proximity=0.7), rivals.feddyn, {**LOCAL, "alpha": 0.7}, "gradient"
    ),
    "fedadmm": Case(FedADMM(0.2, 3, penalty=0.7), rivals.fedadmm, {**LOCAL, "rho": 0.7}, "dual"),
}
STATEFUL = [name for name, case in CASES.items() if case.slot is not None]


def kept(state: PlatformState) -> Tensor:
    """All that the platform keeps, as one vector."""
    return torch.cat([flat(part) for part in (state.theta, *state.memory.values())])


def traced(algorithm: Algorithm, rounds: int = 4, **how: Any) -> Trace:
    return trace(engine_for(algorithm, DATA, MODEL, **how), MODEL, rounds)


class TestAgainstTheTwin:
    @pytest.mark.parametrize("layout", ["loop", "batched-3", "batched-all"])
    @pytest.mark.parametrize("participation", [Participation(), Participation(0.6), LOSSY])
    @pytest.mark.parametrize("name", CASES)
    def test_rounds(self, name: str, participation: Participation, layout: str) -> None:
        case, rounds = CASES[name], 8
        got = traced(case.algorithm, rounds, execution=LAYOUTS[layout], participation=participation)
        if participation != Participation():
            assert {len(S) for S in got.counted} != {5}
        wanted = case.twin(
            flat(MODEL.theta),
            NODES,
            twin_model(MODULE),
            cross_entropy,
            rounds=rounds,
            participation=got.counted,
            **case.arguments,
        )
        assert largest_difference(got.theta, wanted.theta) < 1e-10
        if case.slot is not None:
            leaves = got.nodes[case.slot]
            mine = [flat({n: leaf[i] for n, leaf in leaves.items()}) for i in range(5)]
            assert largest_difference(mine, wanted.own) < 1e-10
            assert all(float(own.abs().max()) > 1e-3 for own in mine)

    def test_what_the_platform_remembers_is_the_sum_over_all_nodes(self) -> None:
        for name, slot, mean in (
            ("scaffold", "control", "control"),
            ("feddyn", "gradient", "mean_gradient"),
        ):
            got = traced(CASES[name].algorithm, 6, participation=LOSSY)
            for parameter, leaf in got.state.memory[mean].items():
                own = got.nodes[slot][parameter]
                wanted = sum(w * each for w, each in zip(WEIGHTS, own, strict=True))
                assert torch.allclose(leaf, wanted, rtol=0, atol=1e-14)
                assert float(leaf.abs().max()) > 1e-4


class Quadratics:
    """Three nodes with one feature and a slope: L_i = mean over samples of (aθ − b)².

    Node i holds copies of one sample (a_i, b_i), so L_i = (a_iθ − b_i)² with the optimum b_i/a_i
    and the curvature 2a_i²; that of Σ w_i L_i is Σ w_i a_i b_i / Σ w_i a_i².
    """

    a, b, sizes = (1.0, 0.5, 1.5), (2.0, -1.0, 0.5), (4, 2, 6)
    optimum = (4 * 1.0 * 2.0 + 2 * 0.5 * -1.0 + 6 * 1.5 * 0.5) / (4 * 1 + 2 * 0.25 + 6 * 2.25)

    def __init__(self) -> None:
        nodes, start = [], 0
        for number, size in enumerate(self.sizes):
            middle = start + size // 2
            rows = np.arange(start, middle), np.arange(middle, start + size)
            nodes.append(Node(f"n{number}", "source", *rows))
            start += size
        nodes.append(Node("target", "target", np.array([start]), np.array([start + 1])))
        inputs = np.repeat((*self.a, 1.0), (*self.sizes, 2))[:, None]
        labels = np.repeat((*self.b, 1.0), (*self.sizes, 2))[:, None]
        self.data = Federation(inputs, labels, Task("regression", 1), nodes, name="quadratics")
        layer = nn.Linear(1, 1, bias=False).double()
        with torch.no_grad():
            layer.weight.fill_(3.0)
        self.model = double(layer)

    def end(self, algorithm: Algorithm, rounds: int, lost: float = 0.0) -> float:
        engine = engine_for(
            algorithm,
            self.data,
            self.model,
            participation=Participation(lost=lost),
            loss=losses.squared_error,
        )
        return float(trace(engine, self.model, rounds).theta[-1])


class TestFixedPoints:
    """Where nodes differ, several local steps of FedAvg end elsewhere; these do not."""

    def test_fedavg_by_hand(self) -> None:
        # E steps contract towards b_i/a_i by q_i = (1 − 2ηa_i²)^E: the fixed point is the mean of
        # b_i/a_i weighted by w_i(1 − q_i).
        problem, eta, steps = Quadratics(), 0.1, 5
        pulls = [
            size * (1 - (1 - 2 * eta * a**2) ** steps)
            for a, size in zip(problem.a, problem.sizes, strict=True)
        ]
        ends = [b / a for a, b in zip(problem.a, problem.b, strict=True)]
        wanted = sum(p * e for p, e in zip(pulls, ends, strict=True)) / sum(pulls)
        found = problem.end(FedAvg(eta, steps), 30)
        assert found == pytest.approx(wanted, abs=1e-10)
        assert abs(found - problem.optimum) > 0.05

    def test_fedprox_by_hand(self) -> None:
        # With μ added to the curvature h_i a step contracts by 1 − η(h_i + μ), and E steps move
        # θ by (1 − (1 − η(h_i + μ))^E)/(h_i + μ) of −∇L_i(θ).
        problem, eta, steps, mu = Quadratics(), 0.1, 5, 0.8
        gains = [
            size * (1 - (1 - eta * (2 * a**2 + mu)) ** steps) / (2 * a**2 + mu)
            for a, size in zip(problem.a, problem.sizes, strict=True)
        ]
        slopes = [2 * a**2 for a in problem.a]
        ends = [b / a for a, b in zip(problem.a, problem.b, strict=True)]
        over = sum(g * s * e for g, s, e in zip(gains, slopes, ends, strict=True))
        wanted = over / sum(g * s for g, s in zip(gains, slopes, strict=True))
        found = problem.end(FedProx(eta, steps, proximity=mu), 40)
        assert found == pytest.approx(wanted, abs=1e-10)
        assert found != pytest.approx(problem.optimum, abs=1e-3)

    @pytest.mark.parametrize(
        "algorithm",
        [Scaffold(0.1, 5), FedDyn(0.1, 5, proximity=2.0), FedADMM(0.1, 5, penalty=2.0)],
        ids=lambda each: each.name,
    )
    @pytest.mark.parametrize("lost", [0.0, 0.3])
    def test_the_optimum_of_the_weighted_sum(self, algorithm: Algorithm, lost: float) -> None:
        problem = Quadratics()
        rounds = 60 if lost == 0 else 120
        assert problem.end(algorithm, rounds, lost) == pytest.approx(problem.optimum, abs=1e-8)

    def test_exact_local_minima_make_feddyn_and_fedadmm_one(self) -> None:
        # Curvatures with α are 3, 1.5 and 5.5: 45 steps leave at most 0.58⁴⁵ = 2e-11 of a distance.
        problem = Quadratics()
        one = problem.end(FedDyn(0.28, 45, proximity=1.0), 3)
        other = problem.end(FedADMM(0.28, 45, penalty=1.0), 3)
        assert one == pytest.approx(other, abs=1e-9)
        assert one != pytest.approx(problem.optimum, abs=1e-3)

    def test_scaffold_with_one_step_is_fedavg(self) -> None:
        mine, theirs = (traced(each(0.2, 1), 5).theta for each in (Scaffold, FedAvg))
        assert largest_difference(mine, theirs) < 1e-13


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("layout", ["loop", "batched-3"])
def test_fedprox_without_pull_is_fedavg_bit_for_bit(batch: int | None, layout: str) -> None:
    common: dict[str, Any] = {"step_size": 0.2, "local_steps": 3, "batch_size": batch}
    for inner in (Adaptation(), LEARNED):
        mine, theirs = (
            kept(traced(each, execution=LAYOUTS[layout]).state)
            for each in (
                FedProx(**common, inner=inner, proximity=0.0),
                FedAvg(**common, inner=inner),
            )
        )
        assert torch.equal(mine, theirs)
    other = traced(FedProx(**common, proximity=0.5), execution=LAYOUTS[layout]).theta
    assert largest_difference(other, traced(FedAvg(**common)).theta) > 1e-4


class TestMembers:
    """They do what every algorithm does."""

    @pytest.mark.parametrize("layout", ["batched-3", "loop"])
    @pytest.mark.parametrize("name", CASES)
    def test_a_round_without_uploads_changes_nothing(self, name: str, layout: str) -> None:
        algorithm = replace(CASES[name].algorithm, inner=LEARNED)
        engine = engine_for(algorithm, DATA, MODEL, LAYOUTS[layout])
        state, nodes = engine.start(MODEL.theta)
        state, nodes, _ = engine.round(state, nodes, 1)
        before = [leaf.clone() for slot in nodes.values() for leaf in slot.values()]
        engine._participation = Participation(lost=1 - 1e-12)
        result = engine.round(state, nodes, 2)
        assert result.metrics["counted"] == 0
        assert float((kept(result.state) - kept(state)).abs().max()) < 1e-15
        after = [leaf for slot in result.nodes.values() for leaf in slot.values()]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))

    @pytest.mark.parametrize("name", CASES)
    def test_all_paths_agree_with_batches_and_learned_steps(self, name: str) -> None:
        algorithm = replace(CASES[name].algorithm, inner=LEARNED, batch_size=2)
        ends = [
            kept(traced(algorithm, 5, execution=LAYOUTS[layout]).state)
            for layout in ("loop", "batched-1", "batched-3", "batched-all")
        ]
        assert all(float((end - ends[0]).abs().max()) < 1e-12 for end in ends)

    @pytest.mark.parametrize("name", CASES)
    def test_step_sizes_are_learned_as_in_fedavg(self, name: str) -> None:
        algorithm = CASES[name].algorithm
        learning, plain = (
            traced(replace(algorithm, inner=each))
            for each in (LEARNED, replace(LEARNED, learned="none"))
        )
        assert torch.equal(flat(learning.state.theta), flat(plain.state.theta))
        steps = learning.state.memory["steps"]
        assert float(flat(steps).abs().max()) > 1e-3
        # Before the first step of θ all have the same slope.
        first, fedavg = (
            traced(each, 1).state.memory["steps"]
            for each in (replace(algorithm, inner=LEARNED), FedAvg(inner=LEARNED))
        )
        assert torch.allclose(flat(first), flat(fedavg), rtol=0, atol=1e-14)
        assert algorithm.adaptation(plain.state).factors is None

    @pytest.mark.parametrize("name", CASES)
    def test_recorded_rounds_are_plain_ones(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm = replace(CASES[name].algorithm, inner=LEARNED)
        plain = kept(traced(algorithm, 5).state)
        monkeypatch.setattr(recording, "_PATIENCE", -1.0)
        assert torch.equal(kept(traced(algorithm, 5).state), plain)

    @pytest.mark.parametrize("name", CASES)
    def test_repeats_end_as_they_would_alone(self, name: str) -> None:
        algorithm = replace(CASES[name].algorithm, batch_size=3, inner=LEARNED)
        jobs = [
            job_of(
                classification(seed=seed),
                mlp(seed=seed),
                algorithm,
                TrainingSettings(rounds=4, seed=seed, evaluate_every=0),
                execution=DOUBLE,
                repeats=2,
            )
            for seed in (1, 2)
        ]
        for seed, run in zip((1, 2), together(jobs), strict=True):
            training = TrainingSettings(rounds=4, seed=seed, evaluate_every=0)
            alone = train(
                classification(seed=seed), mlp(seed=seed), algorithm, training, execution=DOUBLE
            )
            far = flat(run.meta_model.theta) - flat(alone.meta_model.theta)  # type: ignore[union-attr]
            assert float(far.abs().max()) < 1e-12

    @pytest.mark.parametrize("name", CASES)
    def test_a_resumed_run_ends_as_an_uninterrupted_one(self, name: str, tmp_path: Path) -> None:
        algorithm = replace(CASES[name].algorithm, batch_size=3, inner=LEARNED)

        def trained(rounds: int, folder: str, resume: bool = False) -> Tensor:
            training = TrainingSettings(rounds=rounds, checkpoint_every=1, evaluate_every=0)
            run = train(
                DATA,
                mlp(),
                algorithm,
                training,
                participation=LOSSY,
                folder=tmp_path / folder,
                resume=resume,
            )
            return flat(run.meta_model.theta)

        whole = trained(6, "whole")
        trained(3, "parts")
        assert torch.equal(trained(6, "parts", resume=True), whole)

    @pytest.mark.parametrize("name", STATEFUL)
    def test_newcomers(self, name: str) -> None:
        # Two nodes of the same size join two of the same size: the share of the first halves.
        algorithm = CASES[name].algorithm
        theta = {"a": torch.tensor([2.0, 4.0], dtype=torch.float64)}
        state = algorithm.init(theta, Fleet(torch.tensor(1.0), 2))
        (slot,) = state.memory
        moved = PlatformState(theta, {slot: {"a": torch.tensor([1.0, -3.0])}})
        half = Fleet(torch.tensor(0.5), 2)
        found = algorithm.with_newcomers(moved, theta, half).memory[slot]["a"].tolist()
        assert found == ([1.5, 0.5] if name == "fedadmm" else [0.5, -1.5])

    @pytest.mark.parametrize(
        "uplink",
        [
            Uplink(Guard("reject", 100.0)),
            Uplink(compression=Compression("8-bit")),
            Uplink(compression=Compression("top-k", 0.5)),
        ],
        ids=["guard", "8-bit", "top-k"],
    )
    @pytest.mark.parametrize("name", CASES)
    def test_uplinks(self, name: str, uplink: Uplink) -> None:
        algorithm = CASES[name].algorithm
        execution = LAYOUTS["batched-all"]
        layout = Layout(execution, Objective(predictor(MODEL, execution), cross_entropy))
        engine = LocalEngine(algorithm, Cohort(DATA, PLAIN, 0), layout, uplink=uplink)
        mine, theirs = trace(engine, MODEL, 6), traced(algorithm, 6)
        far = largest_difference(mine.theta[-1:], theirs.theta[-1:])
        assert far < 1e-14 if uplink.compression.method == "none" else 1e-12 < far < 0.2

    def test_what_scaffold_sends_is_twice_the_model(self) -> None:
        got = traced(Scaffold(0.2, 3), 1).metrics[0]
        twice = {**MODEL.theta, **{f"control:{n}": leaf for n, leaf in MODEL.theta.items()}}
        number = torch.zeros((), dtype=torch.float64)
        scalars = {"weight": number, "local_loss": number, "primal_squared": number}
        assert got["bytes_down"] == payload_bytes(twice)
        assert got["bytes_up"] == payload_bytes({**twice, **scalars})

    @pytest.mark.parametrize("name", CASES)
    def test_the_loss_of_a_round_is_that_of_the_model_sent(self, name: str) -> None:
        got = traced(CASES[name].algorithm, 3)
        f, theta = twin_model(MODULE), got.theta[1]
        wanted = sum(
            w * cross_entropy(f(theta, torch.cat([n.xs, n.xq])), torch.cat([n.ys, n.yq])).mean()
            for w, n in zip(WEIGHTS, NODES, strict=True)
        )
        assert got.metrics[2]["local_loss"] == pytest.approx(float(wanted), rel=1e-12)

    def test_costs(self) -> None:
        for case in CASES.values():
            assert case.algorithm.passes == Passes(3, 3)
            assert case.algorithm.gradients(4, 3) == 21
            assert replace(case.algorithm, batch_size=2).gradients(4, 3) == 6
            learning = replace(case.algorithm, inner=LEARNED)
            assert learning.gradients(4, 3) == 21 + 2 * 4 + 3

    @pytest.mark.parametrize("name", CASES)
    def test_tables(self, name: str) -> None:
        algorithm = CASES[name].algorithm
        assert algorithm.name == name
        table = RunSpec(algorithm=algorithm).to_dict()
        assert table["algorithm"] == name
        assert RunSpec.from_dict(table).algorithm == algorithm

    @pytest.mark.parametrize(
        ("make", "arguments", "named"),
        [
            (FedProx, {"proximity": -0.1}, "proximity is -0.1: give a number of at least 0"),
            (FedProx, {"proximity": float("nan")}, "proximity"),
            (FedProx, {"local_steps": 0}, "local_steps"),
            (Scaffold, {"step_size": 0.0}, "step_size"),
            (Scaffold, {"batch_size": 0}, "batch_size"),
            (FedDyn, {"proximity": 0.0}, "proximity is 0.0: give a number greater than 0"),
            (FedDyn, {"local_steps": 1.5}, "local_steps"),
            (FedADMM, {"penalty": -1.0}, "penalty"),
            (FedADMM, {"penalty": float("inf")}, "penalty"),
        ],
    )
    def test_nonsense_is_refused(self, make: Any, arguments: Any, named: str) -> None:
        with pytest.raises(SettingError, match=named):
            make(**arguments)
