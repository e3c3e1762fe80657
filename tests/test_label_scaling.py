"""Whole runs on standardised labels: units do not matter, and come back in every answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli.calling import call, succeed
from fedmeta import MetaModel, Run, federate, fit_scaling, train
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.objective import Adaptation
from fedmeta.core.storage import read_tensors, write_tensors
from fedmeta.data import Federation, Task
from fedmeta.models.networks import ModelSettings
from fedmeta.training.many import jobs_together, train_many
from fedmeta.training.start import kept_scaling
from fedmeta.training.train import RunRequest
from problems import flat, regression

DATA = regression()
A, B = 40.0, 300.0


def moved(data: Federation, a: Any = A, b: Any = B) -> Federation:
    return replace(data, labels=a * data.labels + b)


def trained(data: Federation, path: str = "batched", **rest: Any) -> Run:
    return train(
        data,
        ModelSettings("mlp", hidden=(4,)),
        ADMMFedMeta(Adaptation(0.1, steps=2)),
        rest.pop("training", TrainingSettings(rounds=5, evaluation_steps=(0, 2), evaluate_every=2)),
        execution=Execution(dtype="float64", path=path, threads=1),  # type: ignore[arg-type]
        **rest,
    )


@pytest.mark.parametrize("path", ["batched", "loop"])
def test_training_is_the_same_in_any_unit(path: str) -> None:
    one, other = trained(DATA, path), trained(moved(DATA), path)
    assert torch.allclose(flat(one.meta_model.theta), flat(other.meta_model.theta), atol=1e-6)
    assert one.history[-1]["meta_loss"] == pytest.approx(other.history[-1]["meta_loss"], rel=1e-9)
    inputs = DATA.inputs[:5]
    wanted = A * one.meta_model.predict(inputs) + B
    assert torch.allclose(other.meta_model.predict(inputs), wanted, atol=1e-6)
    for steps, row in one.summary["target_metric"].items():
        assert other.summary["target_metric"][steps]["mean"] == pytest.approx(A**2 * row["mean"])
        assert other.summary["target_metric"][steps]["mean_loss"] == pytest.approx(row["mean_loss"])
    for name in ("mean", "worst_decile"):
        assert other.summary["own_mean"][name] == pytest.approx(
            A**2 * one.summary["own_mean"][name]
        )
    plain = trained(moved(DATA), scaling=fit_scaling(moved(DATA), labels="none"))
    assert not torch.allclose(flat(one.meta_model.theta), flat(plain.meta_model.theta), atol=1e-2)


def test_every_output_has_its_own_unit() -> None:
    both = replace(
        DATA, labels=np.hstack([DATA.labels, DATA.labels**2]), task=Task("regression", 2)
    )
    scales, shifts = np.array([5.0, 0.01]), np.array([-3.0, 70.0])
    one, other = trained(both), trained(moved(both, scales, shifts))
    assert torch.allclose(flat(one.meta_model.theta), flat(other.meta_model.theta), atol=1e-6)
    predicted = other.meta_model.predict(both.inputs[:4])
    wanted = one.meta_model.predict(both.inputs[:4]) * torch.tensor(scales) + torch.tensor(shifts)
    assert torch.allclose(predicted, wanted, atol=1e-6)
    # The metric is the mean over outputs of errors in units of their own.
    node = both.targets[0]
    data = moved(both, scales, shifts)
    adapted = other.meta_model.adapt(data.inputs[node.support], data.labels[node.support], 2)
    error = adapted.predict(data.inputs[node.query]) - torch.tensor(data.labels[node.query])
    assert other.evaluation is not None
    assert other.evaluation.values[2][0] == pytest.approx(float(error.square().mean()))


def test_constant_labels_train() -> None:
    constant = replace(DATA, labels=np.full_like(DATA.labels, 12.5))
    run = trained(constant)
    labels = run.meta_model.scaling.labels
    assert labels is not None
    assert (labels.mean.tolist(), labels.deviation.tolist()) == ([12.5], [1.0])
    assert run.summary["own_mean"]["mean"] == 0.0
    assert np.isfinite(run.metric(2))


def test_runs_at_once_have_each_its_own_unit() -> None:
    """Two federations side by side: every one is measured in its own unit."""
    spec = RunSpec(
        data=None,
        model=ModelSettings("mlp", hidden=(4,)),
        algorithm=ADMMFedMeta(Adaptation(0.1, steps=2)),
        training=TrainingSettings(rounds=3, evaluation_steps=(0, 2), evaluate_every=0),
        execution=Execution(dtype="float64", path="batched", threads=1),
    )
    requests = [RunRequest(spec, each) for each in (DATA, moved(DATA))]
    assert jobs_together(requests) is not None
    one, other = train_many(requests)
    assert isinstance(one, Run)
    assert isinstance(other, Run)
    assert other.metric(2) == pytest.approx(A**2 * one.metric(2))


def test_a_saved_model_answers_in_the_unit(tmp_path: Path) -> None:
    data = moved(DATA)
    model = trained(data).meta_model
    model.save(tmp_path / "model.safetensors")
    loaded = MetaModel.load(tmp_path / "model.safetensors")
    node = data.targets[0]
    support = data.inputs[node.support], data.labels[node.support]
    mine, theirs = (each.adapt(*support).predict(data.inputs) for each in (model, loaded))
    assert torch.equal(mine, theirs)
    assert abs(float(mine.mean()) - B) < 3 * A
    # By hand: standardise, step, answer, and back.
    labels = model.scaling.labels
    assert labels is not None
    sources = np.concatenate([np.r_[each.support, each.query] for each in data.sources])
    assert labels.mean == pytest.approx(data.labels[sources].mean())
    assert labels.deviation == pytest.approx(data.labels[sources].std())
    bare = replace(model, scaling=replace(model.scaling, labels=None))
    scaled = (support[1] - labels.mean) / labels.deviation
    by_hand = bare.adapt(support[0], scaled).predict(data.inputs)
    by_hand = by_hand * torch.tensor(labels.deviation) + torch.tensor(labels.mean)
    assert torch.allclose(mine, by_hand, atol=1e-10)


def test_an_older_model_file_is_not_scaled(tmp_path: Path) -> None:
    model = trained(moved(DATA)).meta_model
    model.save(tmp_path / "new.safetensors")
    tensors, facts = read_tensors(tmp_path / "new.safetensors", "model")
    kept = {name: each for name, each in tensors.items() if "label" not in name}
    assert len(kept) == len(tensors) - 2
    about = json.loads(facts["fedmeta"])
    del about["sha256"]
    write_tensors(tmp_path / "old.safetensors", kept, {"fedmeta": json.dumps(about)})
    older = MetaModel.load(tmp_path / "old.safetensors")
    assert older.scaling.labels is None
    with torch.no_grad():
        wanted = older.network(older.theta, older.scaled(DATA.inputs))
    assert torch.equal(older.predict(DATA.inputs), wanted)


def test_resumed_bit_for_bit(tmp_path: Path) -> None:
    data = moved(DATA)
    long = TrainingSettings(rounds=6, checkpoint_every=2, evaluation_steps=(0, 2))
    whole = trained(data, training=long, folder=tmp_path / "whole")
    trained(data, training=replace(long, rounds=4), folder=tmp_path / "run")
    again = trained(data, training=long, folder=tmp_path / "run", resume=True)
    assert torch.equal(flat(again.meta_model.theta), flat(whole.meta_model.theta))
    assert again.summary["target_metric"] == whole.summary["target_metric"]


def as_before(folder: Path) -> None:
    """Make a run look as if it was begun before there was such a setting."""
    file = folder / "settings.json"
    stored = json.loads(file.read_text())
    for table in (stored["settings"], stored["spec"], stored["origin"].get("table", {})):
        table.get("data", {}).pop("label_scaling", None)
    file.write_text(json.dumps(stored))
    (folder / "manifest.json").unlink()


def test_an_older_run_of_ones_own_data_goes_on_unscaled(tmp_path: Path) -> None:
    data = moved(DATA, 2.0, 1.0)
    plain = fit_scaling(data, labels="none")
    long = TrainingSettings(rounds=6, checkpoint_every=2, evaluation_steps=(0, 2))
    whole = trained(data, training=long, scaling=plain)
    trained(data, training=replace(long, rounds=4), scaling=plain, folder=tmp_path / "run")
    as_before(tmp_path / "run")
    for _ in range(2):  # also once the new version has written its settings
        again = trained(data, training=long, folder=tmp_path / "run", resume=True)
        assert again.meta_model.scaling.labels is None
        assert torch.equal(flat(again.meta_model.theta), flat(whole.meta_model.theta))


def test_an_older_run_goes_on_unscaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = "train --data sinusoid --nodes 8 --set training.checkpoint_every=2"
    succeed(f"{small} --rounds 4 --label-scaling none --out whole")
    succeed(f"{small} --rounds 2 --label-scaling none --out run")
    as_before(Path("run"))
    refused = call("train --resume run --rounds 4 --label-scaling standard")
    assert refused.code == 2
    assert "data.label_scaling was 'none' and is now 'standard'" in refused.complaint
    succeed("train --resume run --rounds 4")
    whole, again = (MetaModel.load(Path(name)) for name in ("whole", "run"))
    assert again.scaling.labels is None
    assert torch.equal(flat(again.theta), flat(whole.theta))
    assert "each device's own mean" in succeed("evaluate run")


def test_a_start_keeps_the_labels_of_the_model_it_starts_from(tmp_path: Path) -> None:
    first = trained(moved(DATA), folder=tmp_path / "first")
    start = str(tmp_path / "first")
    second = trained(DATA, start=start)
    mine, theirs = first.meta_model.scaling.labels, second.meta_model.scaling.labels
    assert mine is not None
    assert theirs is not None
    assert np.array_equal(mine.mean, theirs.mean)
    plain = fit_scaling(DATA, labels="none")
    trained(DATA, scaling=plain, folder=tmp_path / "plain")
    third = trained(DATA, start=str(tmp_path / "plain"))
    assert third.meta_model.scaling.labels is None
    spec = RunSpec(data=None, start=start)
    assert kept_scaling(spec, (2,), Task("regression", 1)) is not None
    assert kept_scaling(spec, (2,), Task("regression", 2)) is None
    assert kept_scaling(spec, (2,), Task("classification", 1)) is None


def test_a_loss_of_ones_own_sees_standardised_labels() -> None:
    seen: list[torch.Tensor] = []

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(labels)
        return (outputs - labels).abs().mean(-1)

    data = moved(DATA)
    trained(data, "loop", loss=loss, training=TrainingSettings(rounds=1, evaluate_every=0))
    assert max(float(each.abs().max()) for each in seen) < 10  # B is 300


def heterogeneous(seed: int = 0) -> Federation:
    """Devices whose levels and slopes differ; the variance of all labels is about 80."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(40, 24, 3))
    slopes, levels = 4 + 3 * rng.normal(size=(40, 3, 1)), 40 + 3 * rng.normal(size=(40, 1, 1))
    labels = levels + inputs @ slopes + 0.5 * rng.normal(size=(40, 24, 1))
    device = np.repeat(np.arange(40), 24)
    return federate(inputs.reshape(-1, 3), labels.ravel(), node=device, task="regression")


def test_the_default_beats_each_devices_mean() -> None:
    data = heterogeneous()
    assert data.labels.var() > 70
    run = train(data, ModelSettings("mlp"), rounds=60)
    plain = fit_scaling(data, labels="none")
    unscaled = train(data, ModelSettings("mlp"), rounds=60, scaling=plain)
    own = [
        ((data.labels[n.query] - data.labels[n.support].mean()) ** 2).mean() for n in data.targets
    ]
    assert run.summary["own_mean"]["mean"] == pytest.approx(np.mean(own))
    assert [row["own_mean"] for row in run.summary["targets"]] == pytest.approx(own)
    assert run.metric(1) < 0.6 * np.mean(own)
    assert run.metric(1) < 0.6 * unscaled.metric(1)


def test_what_train_and_evaluate_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = heterogeneous()
    rows = ["a,b,c,y,device"]
    for node in data.nodes[:10]:
        for row in np.r_[node.support, node.query]:
            values = [*data.inputs[row], data.labels[row, 0]]
            rows.append(",".join([*(f"{value:.4f}" for value in values), node.name]))
    Path("own.csv").write_text("\n".join(rows) + "\n")
    own = "--data own.csv --node device --label y --task regression"
    text = succeed(f"train {own} --rounds 1 --out run")
    error = json.loads(Path("run/summary.json").read_text())["own_mean"]["mean"]
    assert f"each device's own mean: {error:.4g}" in text
    note = "note: after 1 step the model is worse than"
    assert note not in text
    assert note in succeed(f"train {own} --rounds 1 --label-scaling none --out plain")
    assert f"each device's own mean: {error:.4g}" in succeed("evaluate run --out found.json")
    assert json.loads(Path("found.json").read_text())["own_mean"]["mean"] == error
    assert "own mean" in Path("run/report.html").read_text()
