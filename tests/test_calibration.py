"""Calibrated confidence: counts by hand, an independent regression, and every surface."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmeta import DataSettings, MetaModel, load
from fedmeta.algorithms import FedAvg
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.core.calibration import BINS, WIDTH, Calibration, bins, counts, margins
from fedmeta.core.errors import DataError, ModelError, RunFolderError, SettingError
from fedmeta.core.serialization import deserialize
from fedmeta.evaluation.calibrating import abstaining, calibrate
from fedmeta.models.networks import ModelSettings
from fedmeta.studies.cross_fitting import cross_fitted, folds_of
from fedmeta.training.run import Run
from fedmeta.training.train import RunRequest, train, train_run
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink


def calibration(total: dict[int, int], correct: dict[int, int]) -> Calibration:
    return Calibration(
        tuple(total.get(i, 0) for i in range(BINS)), tuple(correct.get(i, 0) for i in range(BINS))
    )


def drawn(seed: int) -> Calibration:
    """Counts of many bins, some of them empty."""
    rng = np.random.default_rng(seed)
    total = rng.integers(0, 30, BINS) * (rng.random(BINS) < 0.6)
    return Calibration(tuple(total), tuple(rng.binomial(total, 0.7)))


@pytest.mark.parametrize("seed", range(5))
def test_confidence_is_the_closest_that_never_falls(seed: int) -> None:
    found = drawn(seed)
    total, correct = np.array(found.total), np.array(found.correct)
    known = np.flatnonzero(total)
    raw, weight = (correct[known] + 1) / (total[known] + 2), total[known]
    # max over starts of the min over ends of the mean between them: isotonic regression itself.
    for place, bin_ in enumerate(known):
        lows = [
            min(
                np.average(raw[a : b + 1], weights=weight[a : b + 1])
                for b in range(place, len(known))
            )
            for a in range(place + 1)
        ]
        assert found.table()[bin_] == pytest.approx(max(lows))
    assert list(found.table()) == sorted(found.table())
    for empty in set(range(BINS)) - {*known.tolist()}:
        lower = [k for k in known if k < empty]
        assert found.table()[empty] == found.table()[lower[-1] if lower else known[0]]


def test_nothing_counted_is_no_knowledge() -> None:
    none = calibration({}, {})
    assert none.table() == (0.5,) * BINS
    assert none.threshold(0.1) == 0.0
    assert all(math.isnan(each) for each in none.promised(0.1))


def test_the_threshold_leaves_open_the_share_that_it_promises() -> None:
    # 99 margins: k = 0.1 · 100 is the tenth of them, and half of the bin of the ninth to twelfth.
    found = calibration({0: 8, 4: 4, 9: 87}, {0: 4, 4: 2, 9: 87})
    assert found.threshold(0.1) == pytest.approx(WIDTH * 4.5)
    everything, answered = found.promised(0.1)
    assert everything == pytest.approx(93 / 99)
    assert answered == pytest.approx((1 + 87) / (2 + 87))
    assert found.threshold(0.0) == 0.0
    assert found.promised(0.0) == (everything, everything)
    assert calibration({63: 10}, {63: 9}).threshold(0.5) == WIDTH * 63  # the open bin
    for share in (-0.1, 1.0):
        with pytest.raises(SettingError, match="abstain"):
            found.threshold(share)


def test_exchangeable_samples_are_left_open_as_often() -> None:
    rng = np.random.default_rng(0)
    outputs = torch.tensor(rng.normal(size=(4000, 3)))
    labels = torch.tensor(rng.integers(3, size=4000))
    found = Calibration.of(counts(outputs[:2000], labels[:2000]))
    assert found.samples == 2000
    share = float((margins(outputs[2000:]) < found.threshold(0.2)).double().mean())
    assert share == pytest.approx(0.2, abs=0.03)


def test_counting() -> None:
    outputs = torch.tensor([[2.0, 1.4], [0.0, 9.0], [5.0, 5.0], [torch.nan, 0.0]])
    labels, mask = torch.tensor([0, 1, 0, 1]), torch.tensor([1.0, 1.0, 0.0, 1.0])
    total, correct = counts(outputs, labels, mask)
    assert {i: n for i, n in enumerate(total.tolist()) if n} == {0: 1, 2: 1, 36: 1}
    assert {i: n for i, n in enumerate(correct.tolist()) if n} == {2: 1, 36: 1}
    batched = torch.func.vmap(counts)(outputs.expand(2, -1, -1), labels.expand(2, -1))
    assert torch.equal(batched[0], counts(outputs, labels))
    assert int(bins(torch.tensor(-1.0))) == 0


def test_counts_that_make_no_sense() -> None:
    for total, correct in (((1,), (1,)), ((0,) * BINS, (1,) + (0,) * (BINS - 1))):
        with pytest.raises(SettingError):
            Calibration(total, correct)
    with pytest.raises(SettingError, match="folds"):
        Calibration((0,) * BINS, (0,) * BINS, -1)
    with pytest.raises(SettingError, match="decides"):
        Calibration((0,) * BINS, (0,) * BINS, 5, "yes")  # type: ignore[arg-type]


NODES = DataSettings("digits", nodes=12, samples_per_class=(8, 12))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    federation = load(NODES, seed=1)
    folder = tmp_path_factory.mktemp("calibrated") / "run"
    small = ModelSettings("mlp", hidden=(8,))
    return train(federation, small, FedAvg(), rounds=5, seed=1, folder=folder)


def test_training_counts_every_query_sample_of_the_sources(run: Run) -> None:
    federation, model = load(NODES, seed=1), run.meta_model
    assert model.calibration is not None
    total, correct = torch.zeros(2, BINS, dtype=torch.int64)
    for node in federation.sources:
        names = np.array(model.task.class_names)
        mine = model.adapt(federation.inputs[node.support], names[federation.labels[node.support]])
        outputs = mine.network(mine.theta, mine.scaled(federation.inputs[node.query]))
        some = counts(outputs.detach(), torch.from_numpy(federation.labels[node.query]))
        total, correct = total + some[0], correct + some[1]
    assert model.calibration == Calibration.of(torch.stack([total, correct]))
    execution = deserialize(Execution, run.summary["settings"]["execution"], "execution")
    single = replace(execution, path="loop", chunk=1)
    assert calibrate(model, federation, single, 1) == model.calibration


def test_nodes_that_decide_count_what_they_decided(run: Run) -> None:
    federation, model = load(NODES, seed=1), run.meta_model
    names = np.array(model.task.class_names)
    total, chosen = torch.zeros(2, BINS, dtype=torch.int64), set()
    for node in federation.sources:
        own = federation.inputs[node.support], names[federation.labels[node.support]]
        mine = model.adapt(*own, decide=True)
        chosen.add(mine.about["decision"]["choice"])
        outputs = mine.network(mine.theta, mine.scaled(federation.inputs[node.query]))
        total += counts(outputs.detach(), torch.from_numpy(federation.labels[node.query]))
    assert len(chosen) > 1
    execution = deserialize(Execution, run.summary["settings"]["execution"], "execution")
    found = calibrate(model, federation, execution, 1, decides=True)
    assert found == Calibration.of(total, decides=True)
    assert found.total != (model.calibration or found).total
    apart = replace(model, calibration=replace(found, folds=2))
    as_trained = replace(model, calibration=replace(found, folds=2, decides=False))
    one, other = (abstaining(each, federation, execution, 1) for each in (apart, as_trained))
    assert one is not None
    assert other is not None
    assert one.promised == other.promised
    assert one.accuracy != other.accuracy


def test_it_travels_with_the_model(run: Run, tmp_path: Path) -> None:
    assert run.folder is not None
    model = MetaModel.load(run.folder)
    assert model.calibration == run.meta_model.calibration
    federation = load(NODES, seed=1)
    inputs, labels = federation.inputs[:40], federation.labels[:40]
    adapted = model.adapt(inputs[:8], np.array(model.task.class_names)[labels[:8]])
    assert adapted.calibration is model.calibration
    sure = adapted.confidence(inputs)
    assert bool(((sure > 0) & (sure < 1)).all())
    named = adapted.answers(inputs, abstain=0.5)
    assert {True, False} == {each is None for each in named}
    kept = zip(named, adapted.classify(inputs), strict=True)
    assert all(one == other for one, other in kept if one is not None)
    assert None not in adapted.answers(inputs, abstain=0.0)
    older = replace(model, calibration=None)
    older.save(tmp_path / "older.safetensors")
    assert MetaModel.load(tmp_path / "older.safetensors").calibration is None
    for ask in (older.confidence, older.answers):
        with pytest.raises(ModelError, match="no calibration"):
            ask(inputs)
    damaged = replace(older, about={**older.about, "calibration": {"total": [1], "correct": [0]}})
    damaged.save(tmp_path / "damaged.safetensors")
    with pytest.raises(RunFolderError, match="is damaged: of its calibration"):
        MetaModel.load(tmp_path / "damaged.safetensors")


def test_values_and_private_runs_have_none() -> None:
    values = load(DataSettings("sinusoid", nodes=6), seed=0)
    assert train(values, ModelSettings("mlp"), FedAvg(), rounds=1).meta_model.calibration is None
    private = Uplink(privacy=Privacy(dp="local", clip=1.0, noise=1.0))
    small = ModelSettings("mlp", hidden=(4,))
    found = train(load(NODES, seed=1), small, FedAvg(), rounds=1, uplink=private)
    assert found.meta_model.calibration is None


def test_what_targets_gain(run: Run) -> None:
    federation, model = load(NODES, seed=1), run.meta_model
    execution = deserialize(Execution, run.summary["settings"]["execution"], "execution")
    found = abstaining(model, federation, execution, 1, 0.3)
    assert found is not None
    assert model.calibration is not None
    right, answered, both, total = 0, 0, 0, 0
    for node in federation.targets:
        names = np.array(model.task.class_names)
        mine = model.adapt(federation.inputs[node.support], names[federation.labels[node.support]])
        said = mine.answers(federation.inputs[node.query], 0.3)
        truth = names[federation.labels[node.query]]
        every = mine.classify(federation.inputs[node.query])
        total += len(truth)
        right += sum(one == other for one, other in zip(every, truth, strict=True))
        answered += sum(each is not None for each in said)
        both += sum(one == other for one, other in zip(said, truth, strict=True))
    assert found.coverage == pytest.approx(answered / total)
    assert found.accuracy == pytest.approx(right / total)
    assert found.answered == pytest.approx(both / answered)
    assert found.promised is found.kept is found.promised_gain is None  # of nodes it has seen
    assert json.loads(json.dumps(found.to_dict()))["promised"] is None
    unseen = replace(model.calibration, folds=5)
    found = abstaining(replace(model, calibration=unseen), federation, execution, 1, 0.3)
    assert found is not None
    assert found.promised == unseen.promised(0.3)
    assert found.half_width > 0
    assert json.dumps(found.to_dict())
    assert abstaining(replace(model, calibration=None), federation, execution) is None


def test_every_source_counts_once_under_a_model_that_has_not_seen_it() -> None:
    federation = load(NODES, seed=1)
    spec = RunSpec(NODES, ModelSettings("mlp", hidden=(8,)), FedAvg()).replaced(rounds=2, seed=1)
    parts = list(folds_of(federation, 3, seed=1))
    held = [node.name for part in parts for node in part.targets]
    assert sorted(held) == sorted(node.name for node in federation.sources)
    found = cross_fitted(RunRequest(spec, federation), folds=3)
    assert found.samples == sum(len(node.query) for node in federation.sources)
    assert found.folds == 3
    right = 0.0
    for part in parts:
        run = train_run(RunRequest(spec, part))
        assert run.evaluation is not None
        right += float(np.dot(run.evaluation.values[1], run.evaluation.query_sizes))
    assert sum(found.correct) == pytest.approx(right)
    with pytest.raises(DataError, match="cannot be divided"):
        cross_fitted(RunRequest(spec, federation), folds=99)
    values = RunSpec(DataSettings("sinusoid", nodes=6))
    with pytest.raises(SettingError, match="nothing to calibrate"):
        cross_fitted(RunRequest(values, load(values.data_settings, 0)))
