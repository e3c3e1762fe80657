from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmeta.algorithms import (
    ADMMFedMeta,
    Algorithm,
    Centralised,
    FedAvg,
    FedMeta,
    LocalOnly,
    PerFedAvg,
    PlatformOptimizer,
    Reptile,
)
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DataError, DivergedError, ModelError, RunFolderError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import Federation, Node, Scaling, fit_scaling
from fedmeta.data.augmentation import Augmentation
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import SquaredEuclidean
from fedmeta.training import checkpoints
from fedmeta.training import loop as training
from fedmeta.training.callbacks import Callback
from fedmeta.training.checkpoints import Checkpoint
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation
from problems import classification, flat, job_of, mlp, regression

DATA = classification()
TARGETS = DATA.targets
PRECISE = DATA.with_nodes(
    [
        *DATA.sources,
        replace(TARGETS[0], precise=np.append(TARGETS[0].query[1:], TARGETS[1].support[:1])),
        replace(TARGETS[1], precise=TARGETS[0].support[:2]),
    ]
)
IMAGES = classification(shape=(1, 4, 4))
LOCAL = replace(DATA, task=replace(DATA.task, local_labels=True))
MLP = ModelSettings("mlp", hidden=(4,))
INNER = Adaptation(0.2)
ROUNDS = 5
EVERY = TrainingSettings(
    rounds=ROUNDS, evaluate_every=2, checkpoint_every=1, keep_checkpoints=99, evaluation_steps=(1,)
)
BATCHED = Execution(path="batched", chunk=2, threads=1)
ALGORITHMS: dict[str, Algorithm] = {
    "admm": ADMMFedMeta(INNER, 0.8, local_steps=2, dual_deviation=0.01),
    "admm-stale": ADMMFedMeta(Adaptation(0.2, batch_size=2), 0.8, rule="stale"),
    "admm-auto": ADMMFedMeta(INNER, local_steps=3),
    "fedavg": FedAvg(0.1, local_steps=2, batch_size=3),
    "fedavg-adam": FedAvg(0.1, server="adam"),
    "fedavg-averaged": FedAvg(0.1, server=PlatformOptimizer("momentum", 0.5, averaging=0.5)),
    "fedavg-orthogonal": FedAvg(0.1, server="orthogonal"),
    "per-fedavg": PerFedAvg(INNER, 0.1),
    "fedmeta": FedMeta(INNER, server=PlatformOptimizer("adam", 0.05)),
    "reptile": Reptile(0.1, local_steps=2),
    "local-only": LocalOnly(0.1, steps=3),
    "centralised": Centralised(server=PlatformOptimizer("adam", 0.05)),
}


def trained(
    algorithm: Algorithm = ALGORITHMS["admm"],
    settings: TrainingSettings = EVERY,
    data: Federation = DATA,
    model: nn.Module | ModelSettings = MLP,
    **options: Any,
) -> Run:
    options.setdefault("execution", BATCHED)
    return train(data, model, algorithm, settings, **options)


def timeless(history: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


def forget(folder: Path, last: int) -> None:
    """Take a run back to the checkpoint of a round, as a crash just after it would have."""
    for number in checkpoints.rounds(folder / "checkpoints"):
        if number > last:
            shutil.rmtree(folder / "checkpoints" / f"round-{number:06d}")
    for late in ("summary.json", "model.safetensors", "manifest.json"):
        (folder / late).unlink(missing_ok=True)


class Ear(Callback):
    """Hears everything."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_start(self, first_round: int, rounds: int) -> None:
        self.heard.append(("start", first_round, rounds))

    def on_round(self, record: dict[str, Any]) -> None:
        self.heard.append(("round", record["round"]))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.heard.append(("end", summary["status"]))


class TestARun:
    def test_in_memory_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        run = trained()
        assert run.folder is None
        assert list(tmp_path.iterdir()) == []
        assert [record["round"] for record in run.history] == [1, 2, 3, 4, 5]
        assert run.summary["status"] == "finished"
        assert run.summary["parameters"] == 3 * 4 + 4 + 4 * 3 + 3
        assert run.evaluation is not None
        assert run.summary["target_metric"] == run.evaluation.summary()

    def test_a_folder_holds_the_same(self, tmp_path: Path) -> None:
        run, silent = trained(folder=tmp_path / "run"), trained()
        folder = RunFolder.open(tmp_path / "run")
        assert torch.equal(flat(run.meta_model.theta), flat(silent.meta_model.theta))
        assert timeless(run.history) == timeless(silent.history)
        assert folder.history() == list(run.history)
        assert folder.summary() == json.loads(json.dumps(run.summary))
        assert torch.equal(
            MetaModel.load(tmp_path / "run").predict(DATA.inputs.astype(np.float32)),
            run.meta_model.predict(DATA.inputs.astype(np.float32)),
        )
        assert not [each for each in tmp_path.rglob("*") if each.name.endswith(".tmp")]

    def test_same_seed_same_run_other_seed_other_run(self) -> None:
        first, again = trained(), trained()
        other = trained(settings=replace(EVERY, seed=1))
        assert torch.equal(flat(first.meta_model.theta), flat(again.meta_model.theta))
        assert timeless(first.history) == timeless(again.history)
        assert not torch.equal(flat(first.meta_model.theta), flat(other.meta_model.theta))

    def test_callbacks(self) -> None:
        ears = Ear(), Ear()
        trained(callbacks=ears)
        expected = [("start", 1, 5), *(("round", n) for n in range(1, 6)), ("end", "finished")]
        assert ears[0].heard == ears[1].heard == expected
        trained(callbacks=[type("Deaf", (Callback,), {})()])  # nothing has to be overridden

    def test_evaluations_come_when_asked(self) -> None:
        assert ["target" in r for r in trained().history] == [False, True, False, True, True]
        never = trained(settings=replace(EVERY, evaluate_every=0))
        assert ["target" in r for r in never.history] == [False] * 4 + [True]
        record, last = never.history[-1], never.evaluation
        assert last is not None
        assert record["target"]["1"] == pytest.approx(np.mean(last.values[1]))

    def test_adaptation_steps_are_always_evaluated(self) -> None:
        run = trained(LocalOnly(0.1, steps=7), replace(EVERY, evaluation_steps=(0,)))
        assert run.evaluation is not None
        assert set(run.evaluation.values) == {0, 7}
        assert run.summary["adaptation_steps"] == 7

    def test_no_rounds(self, tmp_path: Path) -> None:
        run = trained(settings=replace(EVERY, rounds=0), folder=tmp_path / "run")
        assert run.history == []
        assert run.evaluation is not None
        assert run.summary["rounds"] == 0

    def test_precise_sets(self, tmp_path: Path) -> None:
        run, plain = trained(data=PRECISE, folder=tmp_path / "run"), trained()
        assert run.evaluation is not None
        assert run.evaluation.precise is not None
        summary = RunFolder.open(tmp_path / "run").summary()
        table = summary["precise_metric"]
        assert table == run.evaluation.precise.summary()
        assert table.keys() == summary["target_metric"].keys()
        assert summary["target_metric"] == plain.summary["target_metric"]
        assert [row["precise"] for row in summary["targets"]] == [4, 2]
        for steps, row in table.items():
            each = [node["precise_metric"][steps] for node in summary["targets"]]
            assert row["mean"] == pytest.approx(np.mean(each))
        records = RunFolder.open(tmp_path / "run").history()
        assert ["precise" in record for record in records] == [False, True, False, True, True]
        assert records[-1]["precise"]["1"] == table["1"]["mean"]
        assert "precise" not in summary["last_round"]
        nodes = RunFolder.open(tmp_path / "run").federation()["nodes"]
        assert [node["precise"] for node in nodes] == [0] * 5 + [4, 2]
        assert plain.summary["precise_metric"] == {}
        assert "precise" not in plain.history[-1]

    def test_no_targets(self) -> None:
        run = trained(data=DATA.with_nodes(DATA.sources))
        assert run.evaluation is None
        assert run.summary["targets"] == []
        assert "target" not in run.history[-1]

    def test_no_sources(self) -> None:
        with pytest.raises(DataError, match="no source nodes"):
            trained(data=DATA.with_nodes(DATA.targets), scaling=Scaling(np.zeros(3), np.ones(3)))

    def test_costs_are_counted(self) -> None:
        run = trained(ADMMFedMeta(INNER, 1.0, local_steps=2))
        support, query = 4 + 2 + 5 + 3 + 1, 3 + 6 + 1 + 3 + 4
        per_round = (6 * support + 2 * query) / (support + query)
        assert run.summary["gradient_evaluations"] == pytest.approx(ROUNDS * per_round)
        first = run.history[0]
        assert run.summary["bytes_per_node"] == ROUNDS * (first["bytes_up"] + first["bytes_down"])

    def test_start_from_given_parameters(self) -> None:
        run = trained()
        theta = {name: leaf.double() for name, leaf in run.meta_model.theta.items()}
        still = trained(LocalOnly(), start=theta)
        assert torch.equal(flat(still.meta_model.theta), flat(run.meta_model.theta))
        with pytest.raises(RunFolderError, match="the initial model is of another model"):
            trained(start={"x": torch.zeros(1)})

    def test_one_class_is_no_task(self) -> None:
        data = classification(classes=1)
        with pytest.raises(DataError, match="are of one class"):
            trained(data=data)

    def test_checks_the_model_on_the_data(self) -> None:
        with pytest.raises(ModelError, match="fails on samples of shape"):
            trained(model=nn.Linear(7, 3))
        with pytest.raises(ModelError, match="3 outputs per sample"):
            trained(model=nn.Linear(3, 2))

    def test_measured_path_is_stored(self, tmp_path: Path) -> None:
        run = trained(execution=Execution(path="measure"), folder=tmp_path / "run")
        stored = RunFolder.open(tmp_path / "run").settings()["settings"]["execution"]
        assert stored["path"] in ("batched", "loop")
        assert stored["chunk"] >= 1
        assert stored["threads"] == torch.get_num_threads()
        assert run.summary["settings"]["execution"] == stored

    def test_any_loss(self) -> None:
        def absolute(outputs: Tensor, labels: Tensor) -> Tensor:
            return (outputs - labels).abs().mean(dim=-1)

        run = trained(
            FedAvg(0.3, 3), replace(EVERY, rounds=30, evaluate_every=0), regression(), loss=absolute
        )
        losses = [record["local_loss"] for record in run.history]
        assert losses[-1] < 0.9 * losses[0]
        assert run.summary["settings"]["loss"].endswith(":TestARun.test_any_loss.<locals>.absolute")

    def test_loss_falls(self) -> None:
        run = trained(ADMMFedMeta(INNER, 0.3), replace(EVERY, rounds=40, evaluate_every=0))
        losses = [record["meta_loss"] for record in run.history]
        assert losses[-1] < 0.7 * losses[0]

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"rounds": -1}, "rounds"),
            ({"seed": -1}, "seed"),
            ({"evaluate_every": -1}, "evaluate_every"),
            ({"checkpoint_every": 0}, "checkpoint_every"),
            ({"keep_checkpoints": 0}, "keep_checkpoints"),
            ({"evaluation_steps": ()}, "evaluation_steps"),
            ({"evaluation_steps": (-1,)}, "evaluation_steps"),
            ({"patience": 0}, "patience"),
        ],
    )
    def test_nonsense_is_refused(self, arguments: dict[str, Any], named: str) -> None:
        with pytest.raises(SettingError, match=named):
            TrainingSettings(**arguments)


class TestResume:
    @pytest.mark.parametrize("name", ALGORITHMS)
    def test_from_every_checkpoint_to_the_same_bits(self, name: str, tmp_path: Path) -> None:
        options: dict[str, Any] = {"participation": Participation(0.8, lost=0.1)}
        whole = trained(ALGORITHMS[name], folder=tmp_path / "whole", **options)
        assert checkpoints.rounds(tmp_path / "whole" / "checkpoints") == [1, 2, 3, 4, 5]
        for last in range(ROUNDS + 1):
            folder = tmp_path / str(last)
            shutil.copytree(tmp_path / "whole", folder)
            forget(folder, last)
            with (folder / "metrics.jsonl").open("a") as file:
                file.write('{"round": 6, "meta_lo')  # cut off in the middle of a line
            ear = Ear()
            run = trained(ALGORITHMS[name], folder=folder, resume=True, callbacks=[ear], **options)
            assert ear.heard[0] == ("start", last + 1, ROUNDS)
            assert torch.equal(flat(run.meta_model.theta), flat(whole.meta_model.theta))
            assert timeless(run.history) == timeless(whole.history)
            assert RunFolder.open(folder).history() == list(run.history)
            assert run.summary["target_metric"] == whole.summary["target_metric"]
            assert run.summary["id"] == whole.summary["id"]
            states = [
                (each / "checkpoints" / "round-000005" / "state.safetensors").read_bytes()
                for each in (folder, tmp_path / "whole")
            ]
            assert states[0] == states[1]

    @pytest.mark.parametrize(
        "options",
        [
            {"data": PRECISE},
            {"data": IMAGES, "augmentation": Augmentation(True, 1)},
            {"data": LOCAL},
        ],
        ids=["precise sets", "augmentation", "renamed labels"],
    )
    def test_with_precise_sets_or_augmentation(
        self, options: dict[str, Any], tmp_path: Path
    ) -> None:
        whole = trained(folder=tmp_path / "run", **options)
        forget(tmp_path / "run", 2)
        run = trained(folder=tmp_path / "run", resume=True, **options)
        assert torch.equal(flat(run.meta_model.theta), flat(whole.meta_model.theta))
        assert timeless(run.history) == timeless(whole.history)
        for table in ("target_metric", "precise_metric", "targets"):
            assert run.summary[table] == whole.summary[table]

    def test_more_rounds(self, tmp_path: Path) -> None:
        trained(folder=tmp_path / "run", settings=replace(EVERY, rounds=3))
        longer = trained(folder=tmp_path / "run", resume=True)
        whole = trained()
        assert torch.equal(flat(longer.meta_model.theta), flat(whole.meta_model.theta))

    def test_layout_comes_from_the_run(self, tmp_path: Path) -> None:
        trained(folder=tmp_path / "run", settings=replace(EVERY, rounds=3))
        run = trained(folder=tmp_path / "run", resume=True, execution=Execution(path="loop"))
        assert run.summary["settings"]["execution"]["path"] == "batched"
        assert run.summary["settings"]["execution"]["chunk"] == 2

    def test_fewer_rounds_than_done(self, tmp_path: Path) -> None:
        trained(folder=tmp_path / "run")
        with pytest.raises(RunFolderError, match="has done 5 rounds already, more than 3"):
            trained(folder=tmp_path / "run", resume=True, settings=replace(EVERY, rounds=3))
        assert len(RunFolder.open(tmp_path / "run").history()) == ROUNDS

    def test_nothing_to_resume(self, tmp_path: Path) -> None:
        with pytest.raises(RunFolderError, match="nothing to resume"):
            trained(resume=True)
        with pytest.raises(RunFolderError, match="there is no run folder"):
            trained(resume=True, folder=tmp_path / "none")
        trained(folder=tmp_path / "run", settings=replace(EVERY, rounds=1))
        with pytest.raises(RunFolderError, match="holds a run already"):
            trained(folder=tmp_path / "run")

    def test_other_weights_or_scaling(self, tmp_path: Path) -> None:
        short = replace(EVERY, rounds=1)
        network = mlp()
        trained(folder=tmp_path / "run", settings=short, model=network)
        other = fit_scaling(DATA, "none")
        with pytest.raises(RunFolderError, match="other weights or with another scaling"):
            trained(
                folder=tmp_path / "run", resume=True, settings=short, model=network, scaling=other
            )
        with torch.no_grad():
            next(network.parameters()).add_(1e-6)
        with pytest.raises(RunFolderError, match="other weights"):
            trained(folder=tmp_path / "run", resume=True, settings=short, model=network)

    def test_changed_data(self, tmp_path: Path) -> None:
        short = replace(EVERY, rounds=1)
        trained(folder=tmp_path / "run", settings=short)
        inputs = DATA.inputs.copy()
        inputs[0, 0] += 1e-9
        swapped = [
            Node(node.name, node.role, node.query, node.support) if node.name == "n3" else node
            for node in DATA.nodes
        ]
        for data in (
            Federation(inputs, DATA.labels, DATA.task, DATA.nodes, DATA.name),
            Federation(DATA.inputs, 2 - DATA.labels, DATA.task, DATA.nodes, DATA.name),
            DATA.with_nodes(swapped),
            DATA.with_nodes(DATA.nodes[1:]),
            PRECISE,
        ):
            with pytest.raises(RunFolderError, match=r"the data of run .* have changed"):
                trained(folder=tmp_path / "run", resume=True, data=data, settings=short)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"algorithm": ADMMFedMeta(INNER, 0.9)},
                r"algorithm\.penalty was 0\.8 and is now 0\.9",
            ),
            ({"algorithm": FedAvg()}, r"algorithm\.name was 'admm-fedmeta' and is now 'fedavg'"),
            ({"settings": replace(EVERY, seed=3)}, r"training\.seed was 0 and is now 3"),
            ({"model": ModelSettings("mlp", hidden=(5,))}, r"model\.hidden was \[4\]"),
            ({"model": nn.Linear(3, 3)}, r"model\."),
            ({"participation": Participation(0.5)}, r"participation\.fraction was 1\.0"),
            ({"loss": "cross-entropy"}, r"loss was 'auto' and is now 'cross-entropy'"),
        ],
    )
    def test_changed_settings(self, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
        trained(folder=tmp_path / "run", settings=replace(EVERY, rounds=1))
        with pytest.raises(RunFolderError, match=f"other settings: {message}"):
            trained(folder=tmp_path / "run", resume=True, **changed)

    def test_another_augmentation(self, tmp_path: Path) -> None:
        trained(data=IMAGES, folder=tmp_path / "run", settings=replace(EVERY, rounds=1))
        other = Augmentation(shift=1)
        with pytest.raises(RunFolderError, match=r"augmentation\.shift was 0 and is now 1"):
            trained(data=IMAGES, folder=tmp_path / "run", resume=True, augmentation=other)

    def test_labels_that_were_renamed(self, tmp_path: Path) -> None:
        trained(data=LOCAL, folder=tmp_path / "run", settings=replace(EVERY, rounds=1))
        other = Augmentation(rename_labels="never")
        with pytest.raises(RunFolderError, match=r"rename_labels was 'auto' and is now 'never'"):
            trained(data=LOCAL, folder=tmp_path / "run", resume=True, augmentation=other)

    def test_another_prior(self, tmp_path: Path) -> None:
        theta = trained().meta_model.theta
        first, other = (
            ADMMFedMeta(
                INNER, 1.0, prior=SquaredEuclidean(0.1, {n: leaf + s for n, leaf in theta.items()})
            )
            for s in (0.0, 1.0)
        )
        trained(first, folder=tmp_path / "run", settings=replace(EVERY, rounds=1))
        with pytest.raises(RunFolderError, match=r"other settings: algorithm\.prior"):
            trained(other, folder=tmp_path / "run", resume=True)
        assert trained(first, folder=tmp_path / "run", resume=True).summary["rounds"] == ROUNDS

    def test_another_format_and_damage(self, tmp_path: Path) -> None:
        trained(folder=tmp_path / "run", settings=replace(EVERY, rounds=2))
        folder = tmp_path / "run"
        state = folder / "checkpoints" / "round-000002" / "state.safetensors"
        (folder / "manifest.json").unlink()
        content = state.read_bytes()
        state.write_bytes(content[:-20])
        with pytest.raises(RunFolderError, match=r"truncated or damaged: delete .* round 1"):
            trained(folder=folder, resume=True)
        shutil.rmtree(state.parent)
        again = trained(folder=folder, resume=True)
        assert torch.equal(flat(again.meta_model.theta), flat(trained().meta_model.theta))
        (folder / "manifest.json").unlink()
        settings = json.loads((folder / "settings.json").read_text())
        (folder / "settings.json").write_text(json.dumps({**settings, "format": 7}))
        with pytest.raises(RunFolderError, match="has format 7"):
            trained(folder=folder, resume=True)

    @pytest.mark.parametrize("lost", ["id", "federation", "settings"])
    def test_settings_with_parts_missing(self, tmp_path: Path, lost: str) -> None:
        trained(folder=tmp_path / "run", settings=replace(EVERY, rounds=1))
        file = tmp_path / "run" / "settings.json"
        settings = json.loads(file.read_text())
        del settings[lost]
        file.write_text(json.dumps(settings))
        with pytest.raises(RunFolderError, match=r"settings\.json is damaged"):
            trained(folder=tmp_path / "run", resume=True)

    def test_a_disk_that_fills_up_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = 0
        save = checkpoints.save

        def full(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise RunFolderError("cannot write (No space left on device)", "free some space")
            return save(*arguments)

        monkeypatch.setattr(training.checkpoints, "save", full)
        with pytest.raises(RunFolderError, match="No space left"):
            trained(folder=tmp_path / "run")
        run = trained(folder=tmp_path / "run", resume=True)
        assert torch.equal(flat(run.meta_model.theta), flat(trained().meta_model.theta))
        assert [record["round"] for record in run.history] == [1, 2, 3, 4, 5]


class TestEarlyStop:
    settings = replace(EVERY, rounds=50, patience=3, evaluate_every=0)

    def test_patience_by_hand(self) -> None:
        def stops(*losses: float) -> bool:
            return TrainingSettings(patience=2).stops([{"meta_loss": loss} for loss in losses])

        assert not stops(3, 2)
        assert not stops(3, 2, 1)
        assert not stops(3, 2, 2.5)
        assert stops(3, 2, 2.5, 2)
        assert not stops(3, 2, 2.5, 1.9)
        assert stops(1, 1, 1)
        assert not TrainingSettings().stops([{"local_loss": 1.0}] * 50)
        assert TrainingSettings(patience=2).stops([{"local_loss": 1.0}] * 3)
        assert not TrainingSettings(patience=2).stops([{"counted": 0}] * 9)

    @pytest.mark.parametrize("every", [1, 3, 100])
    def test_stops_and_resumes_to_the_same(self, tmp_path: Path, every: int) -> None:
        settings = replace(self.settings, checkpoint_every=every)
        run = trained(LocalOnly(), settings, folder=tmp_path / "run")  # its loss never falls
        assert run.summary["status"] == "stopped early"
        assert len(run.history) == 4
        assert run.evaluation is not None
        again = trained(LocalOnly(), settings, folder=tmp_path / "run", resume=True)
        assert again.summary["status"] == "stopped early"
        assert timeless(again.history) == timeless(run.history)
        assert again.summary["target_metric"] == run.summary["target_metric"]


class TestDivergence:
    wild = FedAvg(step_size=3.0)
    settings = replace(EVERY, rounds=500, evaluate_every=0, keep_checkpoints=2)

    def test_it_ends_with_round_and_remedy(self, tmp_path: Path) -> None:
        data, ear = regression(), Ear()
        with pytest.raises(DivergedError) as caught:
            trained(self.wild, self.settings, data, folder=tmp_path / "run", callbacks=[ear])
        folder = RunFolder.open(tmp_path / "run")
        summary = folder.summary()
        assert summary["status"] == "diverged"
        assert ear.heard[-1] == ("end", "diverged")
        number = summary["rounds"] + 1
        assert f"diverged in round {number}" in caught.value.problem
        assert "lower the step sizes" in caught.value.remedy
        assert f"--init {folder.checkpoints}/round-{number - 1:06d}" in caught.value.remedy
        job = job_of(data, MLP, self.wild, self.settings, execution=BATCHED)
        like = Checkpoint(0, *job.engine().start(job.model.theta))
        kept = checkpoints.load(folder.checkpoints, number - 1, like)
        assert all(leaf.isfinite().all() for leaf in kept.state.theta.values())
        assert not folder.model.exists()

    def test_in_memory_and_with_admm(self) -> None:
        wild = ADMMFedMeta(Adaptation(10.0), 1e-9)
        with pytest.raises(DivergedError, match=r"diverged in round \d+.*: raise the penalty ρ"):
            trained(wild, self.settings, regression())


class TestTargetsThatDiverge:
    """Sources are fine; adaptation of the targets overflows."""

    wild = FedAvg(0.01, inner=Adaptation(1e4, steps=40))
    settings = replace(EVERY, evaluation_steps=(0,))

    def test_training_is_not_lost(self, tmp_path: Path) -> None:
        with pytest.raises(DivergedError, match=r"after 40 adaptation steps of size 10000 .*lower"):
            trained(self.wild, self.settings, regression(), folder=tmp_path / "run")
        folder = RunFolder.open(tmp_path / "run")
        assert folder.summary()["status"] == "diverged"
        assert [record["round"] for record in folder.history()] == [1, 2, 3, 4, 5]
        assert folder.history()[-1]["target"]["40"] is None
        assert folder.history()[-1]["target"]["0"] is not None
        assert folder.summary()["target_metric"]["40"]["mean"] is None
        calm = trained(FedAvg(0.01), self.settings, regression())
        theta = load_theta(tmp_path / "run")
        assert all(torch.equal(theta[n], leaf) for n, leaf in calm.meta_model.theta.items())


def test_theta_can_be_read_from_the_folder(tmp_path: Path) -> None:
    run = trained(folder=tmp_path / "run")
    theta = load_theta(tmp_path / "run")
    assert all(torch.equal(theta[name], leaf) for name, leaf in run.meta_model.theta.items())


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(ADMMFedMeta(), 0.036), (ADMMFedMeta(Adaptation(1.0, scope="head")), 1.0)],
)
def test_default_step_size_where_values_are_predicted(
    algorithm: ADMMFedMeta, expected: float
) -> None:
    """Nobody asks for a long step there by leaving it open; who writes it gets it."""
    job = job_of(regression(), ModelSettings("mlp"), algorithm, TrainingSettings(rounds=0))
    assert job.settings["algorithm"]["inner"]["step_size"] == expected
