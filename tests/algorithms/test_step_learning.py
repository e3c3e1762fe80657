"""Algorithms that learn the sizes of the inner steps beside θ: rounds, runs, files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedmeta
from fedmeta.algorithms import (
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
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core import step_sizes
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes
from fedmeta.core.randomness import key
from fedmeta.core.storage import payload_bytes, read_tensors, write_tensors
from fedmeta.core.tree import Tree
from fedmeta.data import NodeData, unpacked
from fedmeta.engine import recording
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.models.losses import cross_entropy
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import SquaredEuclidean
from fedmeta.training import checkpoints
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation
from problems import (
    LAYOUTS,
    PLAIN,
    classification,
    double,
    engine_for,
    flat,
    job_of,
    mlp,
    paper_admm,
    together,
    trace,
)

DATA, MODEL = classification(), double(mlp())
OBJECTIVE = Objective(MODEL, cross_entropy)
INNER = Adaptation(0.3, 2, learned="tensor", learning_scale=2.0)

Make = Callable[[Adaptation], Algorithm]
MAKERS: dict[str, Make] = {
    "admm": lambda inner: paper_admm(inner, 0.5, local_steps=2, dual_deviation=0.01),
    "admm-stale": lambda inner: paper_admm(inner, 0.5, rule="stale"),
    "per-fedavg": lambda inner: PerFedAvg(inner, 0.3, local_steps=2),
    "fedmeta": lambda inner: FedMeta(inner, server=PlatformOptimizer("plain", 0.3)),
    "fedmeta-adam": lambda inner: FedMeta(inner, server=PlatformOptimizer("adam", 0.03)),
    "fedavg": lambda inner: FedAvg(0.1, 2, 3, inner, step_rate=0.5),
    "reptile": lambda inner: Reptile(0.1, 2, inner=inner, step_rate=0.5),
    "centralised": lambda inner: Centralised(
        inner, server=PlatformOptimizer("adam", 0.05), step_rate=0.5
    ),
}


def kept(state: PlatformState) -> Tensor:
    """All that the platform keeps, as one vector."""
    return torch.cat([flat(part) for part in (state.theta, *state.memory.values())])


def autograd(joint: Tree, inner: Adaptation, data: NodeData) -> Tree:
    """The meta-gradient in θ and s, by one graph through the adaptation."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in joint.items()}
    phi = {name: leaf for name, leaf in leaves.items() if not name.startswith("step:")}
    for _ in range(inner.steps):
        loss = cross_entropy(MODEL(phi, data.support.inputs), data.support.labels).mean()
        gradients = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        phi = {
            name: leaf
            - inner.step_size * torch.exp(inner.learning_scale * leaves[f"step:{name}"]) * gradient
            for (name, leaf), gradient in zip(phi.items(), gradients, strict=True)
        }
    loss = cross_entropy(MODEL(phi, data.query.inputs), data.query.labels).mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, gradients, strict=True))


def weights() -> list[float]:
    sizes = [node.size for node in DATA.sources]
    return [size / sum(sizes) for size in sizes]


class TestRounds:
    @pytest.mark.parametrize("learned", ["tensor", "parameter"])
    def test_admm_by_its_letter(self, learned: Any) -> None:
        inner, rho = replace(INNER, learned=learned), 0.5
        nodes = [unpacked(DATA, node, PLAIN, torch.float64) for node in DATA.sources]
        joint = {**MODEL.theta, **step_sizes.start(inner, MODEL.theta)}
        duals = [torch.zeros_like(flat(joint)) for _ in nodes]
        for _ in range(4):
            total = torch.zeros_like(flat(joint))
            for i, (data, w) in enumerate(zip(nodes, weights(), strict=True)):
                dual = -w * flat(autograd(joint, inner, data))
                total += 2 * dual - duals[i]
                duals[i] = dual
            moved = (flat(joint) + total / (rho * len(nodes))).split(
                [leaf.numel() for leaf in joint.values()]
            )
            joint = {
                name: part.reshape(leaf.shape)
                for (name, leaf), part in zip(joint.items(), moved, strict=True)
            }
        got = trace(engine_for(paper_admm(inner, rho), DATA, MODEL), MODEL, 4).state
        assert float((flat({**got.theta, **got.memory["steps"]}) - flat(joint)).abs().max()) < 1e-12
        assert float(flat(got.memory["steps"]).abs().max()) > 0.1

    @pytest.mark.parametrize("name", MAKERS)
    @pytest.mark.parametrize("learned", ["tensor", "parameter"])
    def test_all_paths_learn_the_same(self, name: str, learned: Any) -> None:
        algorithm = MAKERS[name](replace(INNER, learned=learned, scope="head"))
        ends = {}
        for layout in ("loop", "batched-3", "batched-all"):
            engine = engine_for(algorithm, DATA, MODEL, LAYOUTS[layout])
            ends[layout] = trace(engine, MODEL, 5).state
        first = ends["loop"]
        assert set(first.theta) == set(MODEL.theta)
        assert set(first.memory["steps"]) == {"step:2.weight", "step:2.bias"}
        assert float(flat(first.memory["steps"]).abs().max()) > 1e-3
        for state in ends.values():
            assert float((kept(state) - kept(first)).abs().max()) < 1e-12

    @pytest.mark.parametrize("name", ["admm", "fedmeta-adam", "fedavg"])
    def test_recorded_rounds_are_plain_ones(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def end() -> Tensor:
            engine = engine_for(MAKERS[name](INNER), DATA, MODEL, LAYOUTS["batched-3"])
            return kept(trace(engine, MODEL, 5).state)

        plain = end()
        monkeypatch.setattr(recording, "_PATIENCE", -1.0)
        assert torch.equal(end(), plain)

    @pytest.mark.parametrize("name", MAKERS)
    def test_nothing_is_added_where_nothing_is_learned(self, name: str) -> None:
        algorithm = MAKERS[name](replace(INNER, learned="none"))
        got = trace(engine_for(algorithm, DATA, MODEL), MODEL, 2)
        assert "steps" not in got.state.memory
        assert list(algorithm.broadcast(got.state)) == list(MODEL.theta)
        assert algorithm.adaptation(got.state).factors is None
        for slot in got.nodes.values():
            assert list(slot) == list(MODEL.theta)

    @pytest.mark.parametrize("name", MAKERS)
    @pytest.mark.parametrize("layout", ["batched-3", "loop"])
    def test_a_round_without_uploads_changes_nothing(self, name: str, layout: str) -> None:
        engine = engine_for(MAKERS[name](INNER), DATA, MODEL, LAYOUTS[layout])
        state, nodes = engine.start(MODEL.theta)
        state, nodes, _ = engine.round(state, nodes, 1)
        engine._participation = Participation(lost=1 - 1e-12)
        after = engine.round(state, nodes, 2).state
        assert set(after.memory) == set(state.memory)
        assert float((kept(after) - kept(state)).abs().max()) < 1e-15

    @pytest.mark.parametrize("platform", ["linearised", "proximal"])
    def test_a_prior_does_not_pull_step_sizes(self, platform: Any) -> None:
        prior = SquaredEuclidean(0.3, {n: leaf + 1 for n, leaf in MODEL.theta.items()})
        algorithm = paper_admm(INNER, 0.5, platform=platform, prior=prior)
        free = paper_admm(INNER, 0.5, platform=platform)
        with_prior, without = (
            trace(engine_for(each, DATA, MODEL), MODEL, 1).state for each in (algorithm, free)
        )
        assert torch.equal(flat(with_prior.memory["steps"]), flat(without.memory["steps"]))
        assert not torch.equal(flat(with_prior.theta), flat(without.theta))

    def test_step_sizes_travel_with_the_model_and_are_counted(self) -> None:
        engine = engine_for(MAKERS["admm"](replace(INNER, learned="parameter")), DATA, MODEL)
        got = trace(engine, MODEL, 1)
        joint = {**MODEL.theta, **got.state.memory["steps"]}
        assert got.metrics[0]["bytes_down"] == payload_bytes(joint)
        assert set(got.nodes["dual"]) == set(joint)

    def test_the_adaptation_of_a_target(self) -> None:
        algorithm = MAKERS["admm"](INNER)
        state = trace(engine_for(algorithm, DATA, MODEL), MODEL, 3).state
        rule = algorithm.adaptation(state)
        assert rule == INNER
        assert rule.factors is not None
        for name, factor in rule.factors.items():
            assert torch.equal(factor, (2 * state.memory["steps"][f"step:{name}"]).exp())


class TestBaselines:
    """They train θ as before, and s by a first-order slope at the θ they were sent."""

    @pytest.mark.parametrize("name", ["fedavg", "reptile", "centralised"])
    def test_theta_is_trained_as_without(self, name: str) -> None:
        with_steps, without = (
            trace(engine_for(MAKERS[name](inner), DATA, MODEL), MODEL, 4).state.theta
            for inner in (INNER, replace(INNER, learned="none"))
        )
        assert torch.equal(flat(with_steps), flat(without))

    @pytest.mark.parametrize("name", ["fedavg", "reptile", "centralised"])
    @pytest.mark.parametrize("learned", ["tensor", "parameter"])
    def test_the_first_step_by_hand(self, name: str, learned: Any) -> None:
        inner = Adaptation(0.3, learned=learned, learning_scale=2.0)  # one step: exact slope
        joint = {**MODEL.theta, **step_sizes.start(inner, MODEL.theta)}
        slope = sum(
            w * flat(autograd(joint, inner, unpacked(DATA, node, PLAIN, torch.float64)))
            for w, node in zip(weights(), DATA.sources, strict=True)
        )
        assert isinstance(slope, Tensor)
        got = trace(engine_for(MAKERS[name](inner), DATA, MODEL), MODEL, 1).state.memory["steps"]
        length = 0.5 * (0.5 if name == "reptile" else 1)
        expected = -length * slope[-len(flat(got)) :]
        assert float((flat(got) - expected).abs().max()) < 1e-13

    def test_costs(self) -> None:
        inner = Adaptation(steps=3, batch_size=2, learned="tensor")
        assert FedAvg(local_steps=5, inner=inner).passes == Passes(8, 6)
        assert FedAvg(local_steps=5, inner=inner).gradients(10, 20) == 5 * 30 + 3 * 2 + 20
        assert FedAvg(local_steps=5, batch_size=4, inner=inner).gradients(10, 20) == 46
        assert Reptile(local_steps=2, inner=inner).passes == Passes(5, 3)
        assert Centralised(inner=inner).passes == Passes(4, 2)
        assert Centralised(inner=inner).gradients(10, 20) == 30 + 6 + 20
        assert PerFedAvg(replace(inner, learned="none")).passes == PerFedAvg(inner).passes
        plain = replace(inner, learned="none")
        assert FedAvg(local_steps=5, inner=plain).gradients(10, 20) == 150
        assert Centralised(inner=plain).gradients(10, 20) == 30

    @pytest.mark.parametrize("make", [FedAvg, Reptile, Centralised])
    def test_nonsense_is_refused(self, make: Any) -> None:
        with pytest.raises(SettingError, match="step_rate"):
            make(step_rate=0.0)

    def test_local_only_learns_nothing_from_others(self) -> None:
        assert LocalOnly().adaptation(PlatformState({})).learned == "none"

    def test_other_draws_than_local_training(self) -> None:
        seen: list[Tensor | None] = []

        def predict(theta: Tree, x: Tensor, draw: Tensor | None) -> Tensor:
            seen.append(draw)
            return MODEL(theta, x)

        joint = {**MODEL.theta, **step_sizes.start(INNER, MODEL.theta)}
        one = torch.tensor(1.0, dtype=torch.float64)
        data = unpacked(DATA, DATA.sources[0], PLAIN, torch.float64)
        FedAvg(inner=INNER).node_step(
            Objective(predict, cross_entropy), joint, {}, data, Facts(one, one, one, one, key(0))
        )
        assert len({int(draw) for draw in seen if draw is not None}) == len(seen) == 4


SETTINGS = TrainingSettings(
    rounds=5, evaluate_every=2, checkpoint_every=1, keep_checkpoints=99, evaluation_steps=(1,)
)
MLP = ModelSettings("mlp", hidden=(4,))


def trained(algorithm: Algorithm, settings: TrainingSettings = SETTINGS, **options: Any) -> Run:
    options.setdefault("execution", Execution(path="batched", chunk=2, threads=1))
    return train(DATA, MLP, algorithm, settings, **options)


class TestRuns:
    @pytest.mark.parametrize("name", MAKERS)
    def test_a_resumed_run_ends_with_the_same_bits(self, name: str, tmp_path: Path) -> None:
        algorithm, folder = MAKERS[name](INNER), tmp_path / "run"
        whole = trained(algorithm, folder=folder)
        expected = (folder / "model.safetensors").read_bytes()
        state = folder / "checkpoints" / "round-000005" / "state.safetensors"
        last = read_tensors(state, "checkpoint")[0]
        assert any(each.startswith("memory/steps/step:") for each in last)
        for number in checkpoints.rounds(folder / "checkpoints"):
            if number > 2:
                shutil.rmtree(folder / "checkpoints" / f"round-{number:06d}")
        for late in ("summary.json", "model.safetensors"):
            (folder / late).unlink()
        again = trained(algorithm, folder=folder, resume=True)
        assert (folder / "model.safetensors").read_bytes() == expected
        resumed = read_tensors(state, "checkpoint")[0]
        assert all(torch.equal(resumed[each], leaf) for each, leaf in last.items())
        assert again.summary["target_metric"] == whole.summary["target_metric"]

    def test_other_settings_do_not_resume(self, tmp_path: Path) -> None:
        trained(MAKERS["admm"](INNER), folder=tmp_path / "run")
        other = MAKERS["admm"](replace(INNER, learned="parameter"))
        with pytest.raises(RunFolderError, match="learned"):
            trained(other, replace(SETTINGS, rounds=7), folder=tmp_path / "run", resume=True)

    @pytest.mark.parametrize("name", MAKERS)
    @pytest.mark.parametrize("learned", ["tensor", "parameter"])
    def test_repeats_end_as_they_would_have_alone(self, name: str, learned: Any) -> None:
        algorithm = MAKERS[name](replace(INNER, learned=learned))
        execution = Execution(dtype="float64", path="batched")
        jobs: list[Any] = []
        for seed in (4, 5):
            data, settings = classification(seed=seed), replace(SETTINGS, seed=seed)
            layout = jobs[0].layout if jobs else None
            jobs.append(
                job_of(
                    data,
                    mlp(seed=seed),
                    algorithm,
                    settings,
                    execution=execution,
                    repeats=2,
                    layout=layout,
                )
            )
        for job, run in zip(jobs, together(jobs), strict=True):
            assert isinstance(run, Run)
            seed = job.training.seed
            alone = train(
                job.federation, mlp(seed=seed), algorithm, job.training, execution=execution
            )
            mine, single = run.meta_model, alone.meta_model
            assert float((flat(mine.theta) - flat(single.theta)).abs().max()) < 1e-12
            assert mine.adaptation.factors is not None
            assert single.adaptation.factors is not None
            for each, factor in single.adaptation.factors.items():
                assert float((mine.adaptation.factors[each] - factor).abs().max()) < 1e-12
            for steps, row in alone.summary["target_metric"].items():
                assert run.summary["target_metric"][steps] == pytest.approx(row, rel=1e-9)

    def test_learned_steps_help_on_waves(self) -> None:
        """From an inner step size much too small, learning finds larger ones and a lower loss."""
        data = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=20), seed=0)
        ends = {}
        for learned in ("none", "tensor", "parameter"):
            run = train(
                data,
                ModelSettings("mlp", hidden=(20,), activation="tanh"),
                FedMeta(
                    Adaptation(0.005, 3, learned=learned, learning_scale=3.0),
                    server=PlatformOptimizer("adam", 0.01),
                ),
                TrainingSettings(rounds=150, evaluate_every=0, evaluation_steps=(3,)),
                execution=Execution(path="batched"),
            )
            ends[learned] = run.summary["last_round"]["meta_loss"]
            if learned != "none":
                factors = run.meta_model.adaptation.factors
                assert factors is not None
                assert float(torch.cat([f.reshape(-1) for f in factors.values()]).mean()) > 2
        assert ends["tensor"] < 0.8 * ends["none"], ends
        assert ends["parameter"] < 0.8 * ends["none"], ends


class TestFiles:
    @pytest.fixture(params=["tensor", "parameter"])
    def run(self, request: pytest.FixtureRequest, tmp_path: Path) -> Run:
        inner = replace(INNER, learned=request.param, scope="head")
        execution = Execution(dtype="float64", path="loop")
        return trained(MAKERS["admm"](inner), folder=tmp_path / "run", execution=execution)

    def test_a_device_gets_what_evaluation_promised(self, run: Run) -> None:
        assert run.evaluation is not None
        assert run.folder is not None
        model = MetaModel.load(run.folder)
        found, made = model.adaptation.factors, run.meta_model.adaptation.factors
        assert found is not None
        assert made is not None
        assert set(found) == set(made) == {"3.weight", "3.bias"}
        assert all(torch.equal(found[name], leaf) for name, leaf in made.items())
        assert model.adaptation == run.meta_model.adaptation
        node = DATA.targets[0]
        support = DATA.inputs[node.support], DATA.labels[node.support]
        query = DATA.inputs[node.query], DATA.labels[node.query]
        probabilities = model.adapt(*support).predict(query[0])
        loss = -probabilities.log()[range(len(query[1])), query[1]].mean()
        assert run.evaluation.losses[2][0] == pytest.approx(float(loss), abs=1e-10)
        plain = replace(model, adaptation=Adaptation(0.3, 2, "head"))
        assert not torch.allclose(plain.adapt(*support).predict(query[0]), probabilities)
        execution = Execution(dtype="float64", path="loop", chunk=1)
        again = evaluate_model(model, DATA, (0, 1, 2), execution=execution)
        assert again.losses == run.evaluation.losses

    def test_an_adapted_model_keeps_its_step_sizes(self, run: Run, tmp_path: Path) -> None:
        node, file = DATA.targets[0], tmp_path / "mine.safetensors"
        support = DATA.inputs[node.support], DATA.labels[node.support]
        adapted = run.meta_model.adapt(*support)
        adapted.save(file)
        read = MetaModel.load(file)
        assert torch.equal(read.predict(DATA.inputs), adapted.predict(DATA.inputs))
        further = read.adapt(*support).theta, adapted.adapt(*support).theta
        assert torch.equal(flat(further[0]), flat(further[1]))

    def test_factors_follow_the_parameters(self, run: Run) -> None:
        single = {name: leaf.float() for name, leaf in run.meta_model.theta.items()}
        factors = replace(run.meta_model, theta=single).adaptation.factors
        assert factors is not None
        assert all(leaf.dtype == torch.float32 for leaf in factors.values())

    def test_evaluation_in_another_precision(self, run: Run) -> None:
        assert run.evaluation is not None
        execution = Execution(dtype="float32", path="batched", chunk=2)
        found = evaluate_model(run.meta_model, DATA, (2,), execution=execution)
        assert found.losses[2] == pytest.approx(run.evaluation.losses[2], rel=1e-4)

    def test_a_prior_or_a_start_is_the_model_alone(self, run: Run) -> None:
        assert run.folder is not None
        newest = run.folder / "checkpoints" / "round-000005"
        for place in (run.folder, newest):
            assert set(load_theta(place)) == set(run.meta_model.theta)

    def test_an_old_file_adapts_by_its_one_step_size(self, tmp_path: Path) -> None:
        run = trained(MAKERS["admm"](replace(INNER, learned="none")))
        file = tmp_path / "old.safetensors"
        run.meta_model.save(file)
        tensors, metadata = read_tensors(file, "model")
        assert not [name for name in tensors if name.startswith("factors/")]
        old = re.sub(', "sha256": "[0-9a-f]*"', "", metadata["fedmeta"])
        old = old.replace(', "learned": "none", "learning_scale": 2.0', "")
        assert old != metadata["fedmeta"]
        write_tensors(file, tensors, {"fedmeta": old})
        rule = MetaModel.load(file).adaptation
        assert (rule.learned, rule.factors) == ("none", None)

    def test_damaged_files(self, run: Run, tmp_path: Path) -> None:
        assert run.folder is not None
        tensors, metadata = read_tensors(run.folder / "model.safetensors", "model")
        whole = "factors/3.weight"
        rest = {name: leaf for name, leaf in tensors.items() if name != whole}
        neither = {name: leaf for name, leaf in rest.items() if not name.startswith("factors/")}
        cases = {
            "lacks the step sizes that its model learned": neither,
            r"damaged: there are step sizes, but none for '3\.weight'": rest,
            r"damaged: there is a step size for '1\.bias'": {
                **tensors,
                "factors/1.bias": torch.ones(()),
            },
            r"damaged: the step sizes of '3\.weight' have shape \(7,\)": {
                **tensors,
                whole: torch.ones(7),
            },
            r"step sizes of '3\.weight' that are not": {**tensors, whole: -tensors[whole]},
            r"step sizes of '3\.weight' that": {**tensors, whole: tensors[whole] * torch.nan},
        }
        for message, content in cases.items():
            file = tmp_path / "damaged.safetensors"
            write_tensors(file, content, metadata)
            with pytest.raises(RunFolderError, match=message):
                MetaModel.load(file)

    def test_step_sizes_of_another_model(self, run: Run) -> None:
        with pytest.raises(SettingError, match=r"'3\.bias', which adaptation does not move"):
            replace(
                run.meta_model,
                adaptation=replace(run.meta_model.adaptation, scope=("3.weight",)),
            )
