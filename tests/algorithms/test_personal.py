"""Ditto, pFedMe, FedRep and FedBABU: against their slow twins, and by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cli.calling import call, succeed
from fedmeta.algorithms import (
    Algorithm,
    Contribution,
    Ditto,
    FedAvg,
    FedBABU,
    FedRep,
    Fleet,
    PerFedAvg,
    PFedMe,
    PlatformState,
)
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes, adapt
from fedmeta.core.storage import read_tensors
from fedmeta.data import NodeData, Samples, unpacked
from fedmeta.models.losses import cross_entropy
from fedmeta.training.train import train
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink
from oracle import personal
from oracle.twin import grad_L
from problems import (
    LAYOUTS,
    PLAIN,
    classification,
    double,
    engine_for,
    flat,
    job_of,
    largest_difference,
    mlp,
    softmax_regression,
    together,
    trace,
    twin_model,
    twin_nodes,
)

DATA, MODULE = classification(), mlp()
MODEL, NODES = double(MODULE), twin_nodes(DATA)
THETA, ROUNDS = flat(MODEL.theta), 5
HEAD_NAMES = {"2.weight", "2.bias"}
HEAD = torch.cat(
    [
        torch.full((leaf.numel(),), float(name in HEAD_NAMES)).double()
        for name, leaf in MODEL.theta.items()
    ]
)
HALF, LOSSY = Participation(0.5), Participation(0.8, lost=0.3)


@dataclass(frozen=True)
class Case:
    """An algorithm, and its twin with the twin's arguments."""

    algorithm: Algorithm
    function: Callable[..., tuple[list[Tensor], list[Tensor]]]
    arguments: dict[str, Any]
    slot: str | None = None
    participation: Participation = field(default_factory=Participation)


DITTO = Ditto(0.2, 3, inner=Adaptation(pull=0.7), personal=True)
DITTO_TWIN = {"eta": 0.2, "local_steps": 3, "lam": 0.7}
PFEDME = PFedMe(0.4, 2, inner=Adaptation(0.1, 3, pull=2.0), mixing=0.8)
PFEDME_TWIN = {"eta": 0.4, "local_rounds": 2, "alpha": 0.1, "lam": 2.0, "steps": 3, "beta": 0.8}
FEDREP = FedRep(0.3, 2, head_steps=3)
FEDREP_TWIN = {"head": HEAD, "eta": 0.3, "head_steps": 3, "body_steps": 2}
CASES = {
    "ditto": Case(DITTO, personal.ditto, DITTO_TWIN, "personal"),
    "ditto, half": Case(DITTO, personal.ditto, DITTO_TWIN, "personal", HALF),
    "pfedme": Case(PFEDME, personal.pfedme, PFEDME_TWIN),
    "pfedme, lossy": Case(PFEDME, personal.pfedme, PFEDME_TWIN, None, LOSSY),
    "fedrep": Case(FEDREP, personal.fedrep, FEDREP_TWIN, "head"),
    "fedrep, lossy": Case(FEDREP, personal.fedrep, FEDREP_TWIN, "head", LOSSY),
    "fedbabu": Case(
        FedBABU(0.3, 3), personal.fedbabu, {"head": HEAD, "eta": 0.3, "local_steps": 3}
    ),
}
FOUR: dict[str, Algorithm] = {
    "ditto": Ditto(0.2, 2, 2, personal=True),
    "pfedme": PFedMe(batch_size=2, local_steps=2),
    "fedrep": FedRep(0.2, 2, 2, head_steps=3),
    "fedbabu": FedBABU(0.2, 2, 2),
}


def facts(weight: float = 1.0) -> Facts:
    one = torch.tensor(weight, dtype=torch.float64)
    return Facts(one, one, one, torch.tensor(0), randomness.key(3))


def a_node() -> NodeData:
    node = NODES[0]
    sets = ((node.xs, node.ys), (node.xq, node.yq))
    return NodeData(*(Samples(x, y, torch.ones(len(x), dtype=torch.float64)) for x, y in sets))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_rounds_are_those_of_the_twin(name: str, layout: str) -> None:
    case = CASES[name]
    engine = engine_for(case.algorithm, DATA, MODEL, LAYOUTS[layout], case.participation)
    got = trace(engine, MODEL, ROUNDS)
    thetas, held = case.function(
        THETA, NODES, twin_model(MODULE), cross_entropy, counted=got.counted, **case.arguments
    )
    assert (thetas[-1] - THETA).abs().max() > 1e-2
    assert largest_difference(got.theta, thetas) <= 1e-10
    assert set(got.nodes) == ({case.slot} if case.slot else set())
    if case.slot:
        mine = [
            flat({name: stack[i] for name, stack in got.nodes[case.slot].items()})
            for i in range(len(NODES))
        ]
        theirs = [vector[HEAD == 1] if case.slot == "head" else vector for vector in held]
        assert largest_difference(mine, theirs) <= 1e-10
        assert largest_difference(mine[:1], mine[1:2]) > 1e-3


class TestDitto:
    def test_personal_models_change_nothing_else(self) -> None:
        theirs = trace(engine_for(FedAvg(0.2, 3, 2), DATA, MODEL), MODEL, 3)
        for own in (False, True):
            ditto = Ditto(0.2, 3, 2, personal=own)
            mine = trace(engine_for(ditto, DATA, MODEL), MODEL, 3)
            assert all(torch.equal(a, b) for a, b in zip(mine.theta, theirs.theta, strict=True))
            assert ("personal_loss" in mine.metrics[0]) == own

    def test_without_a_pull_personal_models_are_trained_alone(self) -> None:
        ditto = Ditto(0.2, 2, inner=Adaptation(pull=0.0), personal=True)
        got = trace(engine_for(ditto, DATA, MODEL), MODEL, 3)
        f, node = twin_model(MODULE), NODES[1]
        x, y = torch.cat([node.xs, node.xq]), torch.cat([node.ys, node.yq])
        alone = personal.prox(THETA, x, y, f, cross_entropy, alpha=0.2, lam=0.0, steps=6)
        mine = flat({name: stack[1] for name, stack in got.nodes["personal"].items()})
        assert float((mine - alone).abs().max()) < 1e-12

    def test_the_first_personal_loss_is_that_of_theta(self) -> None:
        got = trace(engine_for(DITTO, DATA, MODEL), MODEL, 2)
        first = got.metrics[0]
        assert first["personal_loss"] == pytest.approx(first["local_loss"], rel=1e-12)
        assert got.metrics[1]["personal_loss"] != pytest.approx(got.metrics[1]["local_loss"])


class TestPFedMe:
    def test_a_quadratic_has_its_prox_in_closed_form(self) -> None:
        # L(φ) = (φ − c)²/2 with c = 5: argmin L + λ/2 (φ − w)² = (c + λw)/(1 + λ) = 2 at w = 1.
        objective = Objective(
            lambda theta, x, _key: theta["a"] * x, lambda out, y: (out - y).square() / 2
        )
        one = torch.ones(1, dtype=torch.float64)
        data = NodeData(Samples(one, 5 * one, one), Samples(one, 5 * one, one))
        theta = {"a": torch.tensor(1.0, dtype=torch.float64)}
        rule = Adaptation(0.2, 100, pull=3.0)
        assert float(adapt(objective, rule, theta, data.support)["a"]) == pytest.approx(2.0)
        # w ← w − ηλ(w − φ) = 1 + 0.1·3·1 = 1.3, and the upload is the weight times 0.3.
        algorithm = PFedMe(0.1, 1, inner=rule)
        sent, _ = algorithm.node_step(objective, theta, {}, data, facts(0.5))
        assert float(sent.update["a"]) == pytest.approx(0.15)
        assert float(sent.metrics["local_loss"]) == pytest.approx(0.5 * 8.0)  # (1 − 5)²/2 = 8
        # Two local rounds: φ = (5 + 3·1.3)/4 = 2.225, w = 1.3 + 0.3·0.925 = 1.5775.
        again, _ = replace(algorithm, local_steps=2).node_step(objective, theta, {}, data, facts())
        assert float(again.update["a"]) == pytest.approx(0.5775)

    def test_one_inner_step_is_a_gradient_step(self) -> None:
        # φ = w − α∇L(w), so w goes on by ηλα = 0.25·2·0.4 = 0.2 times the gradient.
        pfedme = PFedMe(0.25, 3, inner=Adaptation(0.4, 1, pull=2.0))
        a, b = (
            trace(engine_for(each, DATA, MODEL), MODEL, 3).theta
            for each in (pfedme, FedAvg(0.2, 3))
        )
        assert largest_difference(a, b) < 1e-12

    def test_the_batch_of_a_local_round_serves_all_its_steps(self) -> None:
        data, objective = a_node(), Objective(MODEL, cross_entropy)
        drawn: list[Tensor] = []

        def predict(theta: Any, x: Tensor, _key: Any) -> Tensor:
            drawn.append(x)
            return MODEL(theta, x)

        pfedme = PFedMe(0.05, 2, 3, inner=Adaptation(0.03, 4, pull=15.0, batch_size=1))
        pfedme.node_step(replace(objective, predict=predict), MODEL.theta, {}, data, facts())
        first, *steps = drawn
        assert len(first) == 7
        assert [len(x) for x in steps] == [3] * 8
        assert all(torch.equal(x, steps[0]) for x in steps[:4])
        assert all(torch.equal(x, steps[4]) for x in steps[4:])
        assert not torch.equal(steps[0], steps[4])


class TestHeads:
    @pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
    def test_uploads_carry_nothing_of_heads(self, name: str) -> None:
        algorithm = FOUR[name]
        objective = Objective(MODEL, cross_entropy)
        node = algorithm.init_node(MODEL.theta, facts())
        sent, after = algorithm.node_step(objective, MODEL.theta, node, a_node(), facts(0.3))
        for leaf in ("2.weight", "2.bias"):
            assert torch.count_nonzero(sent.update[leaf]) == 0
        assert torch.count_nonzero(sent.update["0.weight"]) > 0
        if name == "fedrep":
            assert float((after["head"]["2.bias"] - MODEL.theta["2.bias"]).abs().max()) > 1e-3

    @pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
    @pytest.mark.parametrize(
        "uplink",
        [
            Uplink(),
            Uplink(privacy=Privacy(dp="central", noise=1.0, clip=1.0)),
            Uplink(compression=Compression("8-bit")),
        ],
        ids=["plain", "noise", "8-bit"],
    )
    def test_the_head_of_theta_never_moves_in_training(self, name: str, uplink: Uplink) -> None:
        job = job_of(DATA, mlp(), FOUR[name], uplink=uplink, execution=Execution(dtype="float64"))
        engine = job.engine()
        state, nodes = engine.start(job.model.theta)
        for number in (1, 2, 3):
            state, nodes, _ = engine.round(state, nodes, number)
        for leaf, before in job.model.theta.items():
            assert torch.equal(state.theta[leaf], before) == (leaf in HEAD_NAMES)

    def test_noise_in_the_sum_does_not_reach_the_head(self) -> None:
        ones = {name: torch.ones_like(leaf) for name, leaf in MODEL.theta.items()}
        weight = torch.tensor(0.5, dtype=torch.float64)
        total = Contribution(ones, weight, {"local_loss": weight})
        after, _ = FedBABU().platform_step(PlatformState(MODEL.theta), total, Fleet(weight, 1))
        for name, leaf in MODEL.theta.items():
            assert torch.allclose(after.theta[name], leaf + (0.0 if name in HEAD_NAMES else 2.0))

    def test_what_a_target_fine_tunes(self) -> None:
        state = PlatformState(MODEL.theta)
        inner = Adaptation(0.2, 4, scope="head")
        assert FedRep(inner=inner).adaptation(state) == inner
        assert FedBABU(inner=inner).adaptation(state) == inner
        everything = FedBABU(inner=inner, fine_tuned="all").adaptation(state)
        assert everything == replace(inner, scope="all")

    @pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
    def test_a_head_by_name(self, name: str) -> None:
        patterns = Adaptation(0.1, scope=("0.*",))
        algorithm = replace(FOUR[name], inner=patterns)  # type: ignore[type-var]
        after = trace(engine_for(algorithm, DATA, MODEL), MODEL, 2).state.theta
        for leaf, before in MODEL.theta.items():
            assert torch.equal(after[leaf], before) == leaf.startswith("0.")

    @pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
    def test_a_model_without_a_body(self, name: str) -> None:
        model = double(softmax_regression())
        engine = engine_for(FOUR[name], DATA, model)
        with pytest.raises(SettingError, match=f"whole model, so {name} has no body to train"):
            engine.start(model.theta)


def test_costs() -> None:
    learned = Adaptation(0.1, 2, scope="head", learned="tensor")
    costs: dict[Algorithm, tuple[Passes, float]] = {
        Ditto(local_steps=3): (Passes(3, 3), 30.0),
        Ditto(local_steps=3, batch_size=4, personal=True): (Passes(6, 6), 24.0),
        PFedMe(local_steps=2, inner=Adaptation(0.1, 3, pull=1.0)): (Passes(6, 6), 60.0),
        PFedMe(0.1, 2, 4, inner=Adaptation(0.1, 3, pull=1.0)): (Passes(6, 6), 24.0),
        FedRep(local_steps=2, head_steps=4): (Passes(6, 6), 60.0),
        FedRep(0.1, 2, 5, learned, head_steps=4): (Passes(8, 7), 30.0 + 2 * 6 + 4),
        FedBABU(local_steps=3): (Passes(3, 3), 30.0),
    }
    for algorithm, (passes, gradients) in costs.items():
        assert algorithm.passes == passes, algorithm
        assert algorithm.gradients(6, 4) == gradients, algorithm


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Ditto(step_size=0.0), "step_size"),
        (lambda: Ditto(personal="yes"), "personal"),  # type: ignore[arg-type]
        (lambda: Adaptation(pull=-1.0), "pull is -1.0"),
        (lambda: Adaptation(pull=float("nan")), "pull is nan"),
        (lambda: PFedMe(inner=Adaptation(steps=3)), "inner.pull is 0.0"),
        (lambda: PFedMe(inner=Adaptation(steps=0, pull=1.0)), "inner.steps is 0"),
        (lambda: PFedMe(inner=Adaptation(pull=1.0, scope="head")), "inner.scope is 'head'"),
        (lambda: PFedMe(mixing=0.0), "mixing"),
        (lambda: FedRep(head_steps=0), "head_steps"),
        (lambda: FedRep(inner=Adaptation()), "inner.scope is 'all', but it says .* of fedrep"),
        (lambda: FedBABU(inner=Adaptation()), "inner.scope is 'all', but it says .* of fedbabu"),
        (lambda: FedBABU(fine_tuned="body"), "fine_tuned"),  # type: ignore[arg-type]
        (
            lambda: FedBABU(inner=Adaptation(scope="head", learned="tensor"), fine_tuned="all"),
            "learned for the head alone",
        ),
    ],
)
def test_nonsense_is_refused(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        make()


@pytest.mark.parametrize("name", FOUR)
def test_step_sizes_are_learned_beside(name: str) -> None:
    """θ of a round is the same (pFedMe's nodes use what they learn), and s descends."""
    plain: Any = FOUR[name]
    learning = replace(plain, inner=replace(plain.inner, learned="tensor"), step_rate=0.5)
    got = trace(engine_for(learning, DATA, MODEL, LAYOUTS["batched-3"]), MODEL, 3)
    loop = trace(engine_for(learning, DATA, MODEL, LAYOUTS["loop"]), MODEL, 3)
    assert largest_difference(got.theta, loop.theta) < 1e-12
    steps = got.state.memory["steps"]
    moves = plain.inner.moves(MODEL.theta)
    assert set(steps) == {f"step:{leaf}" for leaf in moves}
    assert all(float(leaf.abs()) > 1e-6 for leaf in steps.values())
    assert set(learning.adaptation(got.state).factors) == moves
    usual = trace(engine_for(plain, DATA, MODEL), MODEL, 3)
    same = largest_difference(got.theta, usual.theta)
    assert same > 1e-9 if name == "pfedme" else same < 1e-12


@pytest.mark.parametrize("name", FOUR)
def test_repeats_trained_together(name: str) -> None:
    training = TrainingSettings(rounds=4, evaluate_every=0)
    execution = Execution(dtype="float64", path="batched")
    jobs = [
        job_of(DATA, mlp(seed=seed), FOUR[name], replace(training, seed=seed), execution=execution)
        for seed in (1, 2)
    ]
    jobs[1] = replace(jobs[1], layout=jobs[0].layout)
    for seed, run in zip((1, 2), together(jobs), strict=True):
        settings = replace(training, seed=seed)
        alone = train(DATA, mlp(seed=seed), FOUR[name], settings, execution=execution)
        found: Any = run
        far = flat(found.meta_model.theta) - flat(alone.meta_model.theta)
        assert float(far.abs().max()) < 1e-12
        assert found.summary["target_metric"] == alone.summary["target_metric"]


@pytest.mark.parametrize("name", FOUR)
def test_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    training = TrainingSettings(rounds=4, checkpoint_every=1, keep_checkpoints=9)
    options: dict[str, Any] = {"participation": Participation(0.8, lost=0.2)}
    whole = train(DATA, mlp(), FOUR[name], training, folder=tmp_path / "run", **options)
    points = tmp_path / "run" / "checkpoints"
    wanted, _ = read_tensors(points / "round-000004" / "state.safetensors", "state")
    held = [key for key in wanted if key.startswith("nodes/")]
    assert bool(held) == (name in ("ditto", "fedrep"))
    for number in (3, 4):
        shutil.rmtree(points / f"round-{number:06d}")
    (tmp_path / "run" / "summary.json").unlink()
    again = train(
        DATA, mlp(), FOUR[name], training, folder=tmp_path / "run", resume=True, **options
    )
    assert torch.equal(flat(again.meta_model.theta), flat(whole.meta_model.theta))
    found, _ = read_tensors(points / "round-000004" / "state.safetensors", "state")
    assert all(torch.equal(found[key], wanted[key]) for key in held)


@pytest.mark.parametrize("name", FOUR)
def test_targets_adapt_by_the_rule_of_training(name: str) -> None:
    """After `inner.steps` steps targets have the loss that the twin finds for the trained θ."""
    algorithm: Any = replace(FOUR[name], step_size=0.1)  # type: ignore[type-var]
    training = TrainingSettings(rounds=10, evaluate_every=0, evaluation_steps=(1, 3))
    doubled = Execution(dtype="float64")
    run = train(DATA, mlp(), algorithm, training, scaling=PLAIN, execution=doubled)
    theta, inner = flat(run.meta_model.theta), algorithm.inner
    rows = {row["name"]: row for row in run.summary["targets"]}
    mask = HEAD if inner.scope == "head" else torch.ones_like(HEAD)
    f = twin_model(MODULE)
    for node in DATA.targets:
        support, query = unpacked(DATA, node, PLAIN, torch.float64)
        phi = theta
        for _ in range(inner.steps):
            slope = grad_L(phi, *support[:2], f, cross_entropy) + inner.pull * (phi - theta)
            phi = phi - inner.step_size * mask * slope
        right = (f(phi, query.inputs).argmax(1) == query.labels).double().mean()
        found = rows[node.name]["metric"]
        assert set(found) == {"0", "1", "3", str(inner.steps)}
        assert found[str(inner.steps)] == pytest.approx(float(right))
        mine = run.meta_model.adapt(
            DATA.inputs[node.support], [f"class {c}" for c in DATA.labels[node.support]]
        )
        assert float((flat(mine.theta) - phi).abs().max()) < 1e-10


@pytest.mark.parametrize("name", ["ditto", "pfedme", "fedrep", "fedbabu"])
def test_from_the_command_line(name: str, tmp_path: Path) -> None:
    line = f"train --algorithm {name} --data digits --nodes 6 --rounds 1 --out {tmp_path / 'run'}"
    assert "accuracy" in succeed(line)
    outcome = call(f"train --algorithm {name} --data digits --set algorithms.{name}.heads=2")
    assert outcome.code != 0
    assert f"algorithms.{name} has no setting 'heads'" in outcome.err


def test_meta_learners_take_a_pull_too() -> None:
    inner = Adaptation(0.2, 3, pull=1.5)
    a, b = (
        trace(engine_for(PerFedAvg(each, 0.3), DATA, MODEL, LAYOUTS[layout]), MODEL, 2).theta
        for each, layout in ((inner, "batched-3"), (inner, "loop"))
    )
    assert largest_difference(a, b) < 1e-12
    plain = trace(engine_for(PerFedAvg(replace(inner, pull=0.0), 0.3), DATA, MODEL), MODEL, 2).theta
    assert largest_difference(a, plain) > 1e-4


def test_convolutions_on_all_paths() -> None:
    data = classification(shape=(1, 6, 6))
    layers = [nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)]
    model = double(nn.Sequential(*layers))
    for algorithm in FOUR.values():
        some, one = (
            trace(engine_for(algorithm, data, model, LAYOUTS[layout]), model, 2).theta
            for layout in ("batched-3", "loop")
        )
        assert largest_difference(some, one) < 1e-12
