"""Metrics against scikit-learn's, what they say of lazy answers, and how they tune and stop."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

import fedmeta
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import SettingError
from fedmeta.evaluation.baseline import baseline
from fedmeta.evaluation.evaluate import scores
from fedmeta.evaluation.metrics import (
    auc,
    class_metrics,
    class_table,
    confusion,
    node_aucs,
    value_metrics,
)

SMALL = fedmeta.ModelSettings("linear")


@pytest.mark.parametrize("seed", range(5))
def test_class_metrics_are_scikit_learns_node_by_node(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, answers = rng.integers(0, 4, (2, 6, 9))
    mask = np.arange(9) < rng.integers(3, 10, 6)[:, None]
    mapped = torch.func.vmap(lambda a, y, m: class_metrics(a, y, m, 5))
    found = mapped(torch.tensor(answers), torch.tensor(labels), torch.tensor(mask).float())
    for node in range(6):
        y, a = labels[node][mask[node]], answers[node][mask[node]]
        recalls = oracle.recall_score(y, a, labels=np.unique(y), average="macro", zero_division=0)
        assert found["balanced-accuracy"][node].item() == pytest.approx(recalls)
        f1 = oracle.f1_score(y, a, average="macro", zero_division=0)
        assert found["f1"][node].item() == pytest.approx(f1, abs=1e-6)


def test_value_metrics_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    y, p, unit = rng.normal(size=(8, 2)), rng.normal(size=(8, 2)), np.array([3.0, 0.5])
    found = value_metrics(*map(torch.tensor, (p, y, np.ones(8), unit)))
    assert found["mae"].item() == pytest.approx(oracle.mean_absolute_error(y * unit, p * unit))
    assert found["r2"].item() == pytest.approx(oracle.r2_score(y, p))
    flat = value_metrics(*map(torch.tensor, (p, np.ones((8, 2)), np.ones(8), unit)))
    assert flat["r2"].isnan()


def test_auc_is_scikit_learns_with_ties_and_groups() -> None:
    rng = np.random.default_rng(0)
    scores, group = rng.integers(0, 6, 300) / 5, np.sort(rng.integers(0, 7, 300))
    positive = rng.random(300) < 0.3
    found = auc(scores, positive, group, 8)
    for number in range(7):
        mine = group == number
        assert found[number] == pytest.approx(oracle.roc_auc_score(positive[mine], scores[mine]))
    assert np.isnan(found[7])
    assert np.isnan(auc(scores, np.ones(300, bool), group, 7)).all()


def test_classes_over_all_samples_are_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 3, 200), rng.dirichlet([1, 1, 1], 200)
    answers = scores.argmax(axis=1)
    table = class_table(scores, labels, ("a", "b", "c"))
    assert table["confusion"] == oracle.confusion_matrix(labels, answers).tolist()
    assert confusion(answers, labels, 3).sum() == 200
    precision, recall, f1, support = oracle.precision_recall_fscore_support(labels, answers)
    for c, row in enumerate(table["classes"]):
        expected = (precision[c], recall[c], f1[c], support[c])
        assert (row["precision"], row["recall"], row["f1"], row["samples"]) == pytest.approx(
            expected
        )
        assert row["auc"] == pytest.approx(oracle.roc_auc_score(labels == c, scores[:, c]))
    one = node_aucs(scores, labels, np.zeros(200, int), 1)[0]
    expected = oracle.roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    assert one == pytest.approx(expected)


def lopsided() -> fedmeta.Federation:
    """Nine of ten samples are of one class, and inputs say nothing."""
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(300) % 10 == 0, "worn", "ok")
    return fedmeta.federate(rng.normal(size=(300, 2)), labels, np.arange(300) // 30)


def own(labels: np.ndarray, outputs: np.ndarray) -> float:
    assert outputs.shape == (len(labels), 2)
    assert outputs.sum(axis=1) == pytest.approx(np.ones(len(labels)), abs=1e-5)
    return float(len(labels))


def test_a_model_that_always_says_ok_is_seen_through() -> None:
    federation = lopsided()
    run = fedmeta.train(federation, SMALL, fedmeta.FedAvg(), rounds=20, metrics=[own])
    found, lazy = run.summary["metrics"], run.summary["baseline"]
    assert found["accuracy"]["1"]["mean"] > 0.85
    assert found["balanced-accuracy"]["1"]["mean"] < 0.6
    assert lazy["of"] == "always the most frequent class, ok"
    assert lazy["accuracy"] == pytest.approx(0.9, abs=0.05)
    assert lazy["balanced-accuracy"] == 0.5
    assert found["own"]["1"]["mean"] == np.mean([len(n.query) for n in federation.targets])
    worn = next(row for row in run.summary["classes"] if row["name"] == "worn")
    assert worn["recall"] < 0.3
    assert np.sum(run.summary["confusion"]) == sum(len(n.query) for n in federation.targets)
    again = fedmeta.evaluate_model(run.meta_model, federation, metrics=[own])
    assert again.metrics()["own"] == found["own"]
    with pytest.raises(SettingError, match="two metrics are called 'own'"):
        fedmeta.evaluate_model(run.meta_model, federation, metrics=[own, own])


def test_values_are_measured_in_the_label_s_unit() -> None:
    rng = np.random.default_rng(0)
    x, node = rng.normal(size=(200, 2)), np.arange(200) // 20
    y = 1000 + 50 * x[:, 0] + 100 * (node % 3)
    federation = fedmeta.federate(x, y, node, task="regression")
    run = fedmeta.train(federation, SMALL, rounds=30)
    steps = str(run.summary["adaptation_steps"])
    squared, absolute, explained = (
        run.summary["metrics"][name][steps]["mean"] for name in ("mse", "mae", "r2")
    )
    adapted = []
    for target in federation.targets:
        model = run.meta_model.adapt(x[target.support], y[target.support])
        adapted.append(
            np.abs(model.predict(x[target.query])[:, 0].numpy() - y[target.query]).mean()
        )
    assert absolute == pytest.approx(np.mean(adapted), rel=1e-3)
    assert squared == run.summary["target_metric"][steps]["mean"]
    assert explained < 1
    lazy = baseline(federation)
    target = federation.targets[0]
    assert set(lazy) == {"of", "mse", "mae", "r2"}
    assert lazy["mse"] == pytest.approx(run.summary["own_mean"]["mean"])
    assert lazy["r2"] <= 0
    assert len(target.query) > 1


def test_a_metric_of_the_sources_stops_a_run() -> None:
    training = TrainingSettings(rounds=40, evaluate_every=1, patience=3, metric="balanced-accuracy")
    run = fedmeta.train(lopsided(), SMALL, fedmeta.FedAvg(), training)
    assert run.summary["status"] == "stopped early"
    seen = [record["sources"]["balanced-accuracy"] for record in run.history]
    assert len(seen) == len(run.history) < 40
    assert max(seen[-3:]) <= max(seen[:-3])


@pytest.mark.parametrize(("metric", "stops"), [("mse", True), ("r2", False)])
def test_which_way_is_better_is_known(metric, stops) -> None:
    rising = [{"round": n, "sources": {metric: float(n)}} for n in range(1, 9)]
    training = TrainingSettings(evaluate_every=1, patience=2, metric=metric)
    assert training.stops(rising) is stops


def test_metrics_that_make_no_sense_are_told() -> None:
    with pytest.raises(SettingError, match="use one of: accuracy, balanced-accuracy, f1, auc"):
        fedmeta.train(lopsided(), SMALL, training=TrainingSettings(rounds=1, metric="mae"))
    with pytest.raises(SettingError, match="metric is 'acuracy'"):
        TrainingSettings(metric="acuracy")
    with pytest.raises(SettingError, match="evaluate_every is 10"):
        TrainingSettings(metric="f1", patience=3)


def test_a_metric_tunes_and_two_seeds_crown_nobody() -> None:
    table = {
        "algorithm": "fedavg",
        "data": {"nodes": 12, "samples": [10, 12]},
        "model": {"name": "linear"},
        "training": {"rounds": 2, "metric": "f1"},
    }
    points = fedmeta.grid({"step_size": [0.001, 0.3]})
    found = fedmeta.tune(table, points, seeds=[0, 1])
    assert [trial["metric"] for trial in found["trials"]] == ["f1", "f1"]
    assert [trial["ci95"] for trial in found["trials"]] == [None, None]
    assert found["crowned"] is False
    assert found["best"]["mean"] == max(trial["mean"] for trial in found["trials"])


def rare(labels: np.ndarray, outputs: np.ndarray) -> float:
    """How sure the model is of the second class: a metric of one's own."""
    return float(outputs[:, 1].mean())


def test_one_s_own_metric_and_any_other_compare(tmp_path: Path) -> None:
    table = {
        "data": {"nodes": 10, "samples": [10, 12]},
        "model": {"name": "linear"},
        "training": {"rounds": 2, "evaluate_every": 0},
    }
    spec = fedmeta.RunSpec.from_dict(table)
    methods = [fedmeta.FedAvg(), fedmeta.Reptile()]
    plain = fedmeta.compare(spec, methods, [0, 1, 2], folder=tmp_path / "plain")
    asked = fedmeta.compare(
        spec.replaced(metric="balanced-accuracy"), methods, [0, 1, 2], folder=tmp_path / "asked"
    )
    mine = fedmeta.compare(spec, methods, [0, 1, 2], folder=tmp_path / "own", metric=rare)
    assert plain.title.startswith("accuracy of")
    assert asked.title.startswith("balanced-accuracy of")
    assert mine.title.startswith("rare of")
    for row, other in zip(asked["rows"], plain["rows"], strict=True):
        found = row["metrics"]["balanced-accuracy"]
        summaries = [fedmeta.Run.load(tmp_path / "asked" / run).summary for run in row["runs"]]
        values = [each["metrics"]["balanced-accuracy"]["1"]["mean"] for each in summaries]
        assert found["values"] == values
        assert found["mean"] == pytest.approx(np.mean(values))
        assert asked.by_metric(row)["mean"] == found["mean"]
        assert row["mean"] == other["mean"]  # accuracy stays beside it
    first, second = (row["metrics"]["rare"]["values"] for row in mine["rows"])
    assert mine["paired"][0]["metrics"]["rare"]["mean"] == pytest.approx(
        np.mean(np.subtract(first, second))
    )
    assert mine["rows"][0]["metrics"]["rare"]["before_mean"] is None  # known once adapted
    assert mine.cells()[0][1] == "–"
    assert "–" in mine._repr_html_()


def test_one_s_own_metric_tunes() -> None:
    table = {
        "algorithm": "fedavg",
        "data": {"nodes": 12, "samples": [10, 12]},
        "model": {"name": "linear"},
        "training": {"rounds": 2},
    }
    points = fedmeta.grid({"step_size": [0.001, 0.3]})
    found = fedmeta.tune(table, points, seeds=[0, 1, 2], metric=rare)
    assert [trial["metric"] for trial in found["trials"]] == ["rare", "rare"]
    assert found["best"]["mean"] == max(trial["mean"] for trial in found["trials"])
    plain = fedmeta.tune(table, points, seeds=[0, 1, 2])
    assert [t["values"] for t in plain["trials"]] != [t["values"] for t in found["trials"]]


def test_an_evaluation_shows_itself_in_a_line() -> None:
    federation = lopsided()
    run = fedmeta.train(federation, SMALL, fedmeta.FedAvg(), rounds=1)
    found = fedmeta.evaluate_model(run.meta_model, federation)
    assert re.fullmatch(
        r"Evaluation\(accuracy of 2 nodes by steps: 0: [\d.]+ %, 1: [\d.]+ %, 5: [\d.]+ %\)",
        repr(found),
    )
    assert "<td>balanced-accuracy</td>" in found._repr_html_()
    assert len(found._repr_html_()) < 2000


def test_scores_of_one_device_are_scikit_learns() -> None:
    federation = lopsided()
    model = fedmeta.train(federation, SMALL, fedmeta.FedAvg(), rounds=3).meta_model
    inputs, labels = federation.inputs[:60], federation.labels[:60]
    found, outputs = scores(model, inputs, labels), model.predict(inputs).numpy()
    answers = outputs.argmax(axis=1)
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(labels, answers))
    recalls = oracle.recall_score(labels, answers, average="macro", zero_division=0)
    assert found["balanced-accuracy"] == pytest.approx(recalls)
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(labels, outputs[:, 1]))


def test_a_loss_that_weighs_classes_is_not_told_to_weigh_classes() -> None:
    run = fedmeta.train(
        lopsided(), SMALL, fedmeta.FedAvg(), rounds=2, loss="balanced-cross-entropy"
    )
    (note,) = run.summary["notes"]
    assert "judge a loss that weighs classes by balanced-accuracy" in note
    assert "--loss" not in note
