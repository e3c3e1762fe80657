"""A device that keeps what it learned: it falls back, notices drift, and loses nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import fedmeta_edge
from edge.conftest import Exported
from export.exporting import Array, answers, farthest, meta_model
from fedmeta import Adaptation, ModelSettings
from fedmeta.core import calibration
from fedmeta.export import export_onnx
from fedmeta.export.checksum import with_checksum
from fedmeta_edge import cli
from fedmeta_edge.calibration import Calibration, margins
from fedmeta_edge.device import STATE
from fedmeta_edge.samples import Samples
from fedmeta_edge.watching import USUAL, Watch

COUNTS = calibration.Calibration(
    (40, 30, 20, 10, 0, 9, *[0] * 56, 1, 5), (10, 15, 18, 5, 0, 9, *[0] * 56, 0, 5)
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Three classes of four numbers, calibrated."""
    rule = Adaptation(0.5, scope="head")
    model = meta_model(ModelSettings("mlp", hidden=(6,)), (4,), 3, rule)
    model = replace(model, calibration=COUNTS)
    path = tmp_path_factory.mktemp("device") / "small.onnx"
    export_onnx(model, path, adaptable=True)
    return Exported(model, path)


def drawn(small: Exported, count: int, seed: int) -> tuple[Array, Array]:
    """Samples, and labels that the meta-model gives to none of them: a device of its own kind."""
    inputs = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return inputs, (answers(small.model, inputs).argmax(axis=1) + 1) % 3


def written(path: Path, inputs: Array, labels: Array | None) -> str:
    np.savez(path, x=inputs, **({} if labels is None else {"y": labels}))
    return str(path)


def test_confidence_and_abstaining_are_those_of_pytorch(small: Exported) -> None:
    model = fedmeta_edge.load(small.path)
    assert model.calibration == Calibration(COUNTS.total, COUNTS.correct)
    assert np.allclose(model.calibration.table(), COUNTS.table(), rtol=1e-12)
    for share in (0.0, 0.05, 0.1, 0.5, 0.97):
        assert model.calibration.threshold(share) == pytest.approx(COUNTS.threshold(share))
    inputs, _ = drawn(small, 200, 0)
    ours = fedmeta_edge.confidence(model, inputs)
    assert np.allclose(ours, small.model.confidence(inputs).numpy())
    assert fedmeta_edge.answers(model, inputs, abstain=0.3) == small.model.answers(inputs, 0.3)
    assert None in small.model.answers(inputs, 0.3)
    wild = np.array([[np.nan, 0, 1], [np.inf, 0, 1], [np.inf, np.inf, 0]])
    assert np.isfinite(model.calibration.confidence(margins(wild))).all()
    with pytest.raises(fedmeta_edge.EdgeError, match="below 1"):
        model.calibration.threshold(1.0)


def test_files_of_older_versions_decide_among_steps(small: Exported, tmp_path: Path) -> None:
    proto = onnx.load(small.path)
    facts = json.loads({each.key: each.value for each in proto.metadata_props}["fedmeta"])
    kept = [o for o in proto.graph.output if o.name.startswith("adapted/") or o.name == "logits"]
    del proto.graph.output[:], proto.metadata_props[:]
    proto.graph.output.extend(kept)
    del facts["calibration"], facts["format"]
    (tmp_path / "older.onnx").write_bytes(with_checksum(proto, facts))
    older = fedmeta_edge.load(tmp_path / "older.onnx")
    assert older.calibration is None
    for seed in range(5):
        inputs, labels = drawn(small, 9, seed)
        _, ours = fedmeta_edge.adapt_if_it_helps(older, inputs, labels)
        names = np.array(small.model.task.class_names)[labels]
        theirs = small.model.adapt(inputs, names, decide=("one", "several")).about["decision"]
        assert ours.choice == theirs["choice"]
        assert list(ours.losses.values()) == pytest.approx([*theirs["losses"].values()], rel=1e-3)


def test_it_learns_falls_back_and_returns(
    small: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "device")
    inputs, labels = drawn(small, 30, 1)
    mine = written(tmp_path / "mine.npz", inputs, labels)
    assert cli.run(["learn", folder, "--model", str(small.path), "--data", mine]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answers"] == "adapted"
    assert told["choice"] != "none"
    learned = fedmeta_edge.reopen(folder)
    wanted, _ = fedmeta_edge.adapt_if_it_helps(learned.model, inputs, labels)
    assert learned.weights is not None
    assert farthest(learned.weights, wanted.weights) == 0
    # The device is given away: on new samples the meta-model is right about everything.
    others, _ = drawn(small, 20, 2)
    right = answers(small.model, others).argmax(axis=1)
    theirs = written(tmp_path / "theirs.npz", others, right)
    assert cli.run(["watch", folder, "--data", theirs]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["answers"], told["fallbacks"]) == ("meta-model", 1)
    assert told["lead"] < 0
    assert fedmeta_edge.reopen(folder).weights is None
    assert cli.run(["predict", folder, "--data", theirs]) == 0
    assert "accuracy 100.0 %" in capsys.readouterr().err
    # And back: the head was kept.
    again = written(tmp_path / "again.npz", *drawn(small, 40, 3))
    assert cli.run(["watch", folder, "--data", again]) == 0
    assert cli.run(["status", folder]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["answers"] == "adapted"
    assert all(
        value is None or isinstance(value, bool | float | int | str) for value in first.values()
    )
    kept = sorted(each.name for each in (tmp_path / "device").iterdir())
    assert [name.split("-")[0] for name in kept] == ["head", "model", STATE]


def test_samples_without_labels_tell_of_drift(small: Exported, tmp_path: Path) -> None:
    device, _ = fedmeta_edge.learn(
        fedmeta_edge.begin(tmp_path, small.path), Samples(*drawn(small, 30, 1))
    )
    inputs, _ = drawn(small, 2000, 5)
    ordered = inputs[np.argsort(margins(device.model.logits(inputs, device.weights)))]
    device = fedmeta_edge.watch(device, Samples(ordered[1000::10], None))
    assert device.watch.drifts is False
    found = fedmeta_edge.watch(device, Samples(ordered[:100], None))  # the least sure ones
    assert found.watch.drifts is True
    assert found.watch.leads == ()
    assert found.watch == fedmeta_edge.reopen(tmp_path).watch


def test_usual_confidence_does_not_drift() -> None:
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        alarms += bool(Watch().seen(rng.uniform(0.6, 1.0, USUAL + 150)).drifts)
    assert alarms <= 4
    assert Watch().seen(np.ones(USUAL - 1)).drifts is None


def test_what_a_head_blew_up_is_left() -> None:
    assert not Watch(adapted=True).judged(np.array([1.0, -np.inf])).adapted
    assert not Watch(adapted=True).judged(np.array([1.0, np.nan])).adapted


def test_bad_input_changes_nothing(
    small: Exported,
    values: Exported,
    fixed: Exported,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "device"
    mine = written(tmp_path / "mine.npz", *drawn(small, 30, 1))
    assert cli.run(["status", str(folder)]) == 2
    assert "is no device's folder" in capsys.readouterr().err
    assert cli.run(["learn", str(folder), "--model", str(small.path), "--data", mine]) == 0
    before = (folder / STATE).read_bytes()
    wrong = written(tmp_path / "wrong.npz", np.zeros((2, 5), np.float32), np.array([0, 1]))
    unlabelled = written(tmp_path / "bare.npz", np.zeros((2, 4), np.float32), None)
    capsys.readouterr()
    for line in (
        ["learn", str(folder), "--data", wrong],
        ["learn", str(folder), "--data", unlabelled],
        ["watch", str(folder), "--data", wrong],
        ["learn", str(folder), "--model", str(values.path), "--data", mine],
        ["learn", str(folder), "--model", str(fixed.path), "--data", mine],
        ["learn", str(folder), "--data", mine, "--seed", "-1"],
    ):
        assert cli.run(line) == 2, line
        assert capsys.readouterr().err.count("\n") == 1
        assert (folder / STATE).read_bytes() == before
        assert fedmeta_edge.reopen(folder).weights is not None
    (folder / STATE).write_text('{"format": 1}')
    with pytest.raises(fedmeta_edge.EdgeError, match="is damaged"):
        fedmeta_edge.reopen(folder)
    (folder / STATE).write_text('{"format": 9}')
    with pytest.raises(fedmeta_edge.EdgeError, match="update"):
        fedmeta_edge.reopen(folder)


def test_values_have_no_confidence(
    values: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    labels = answers(values.model, inputs) + 3.0
    device, _ = fedmeta_edge.learn(
        fedmeta_edge.begin(tmp_path, values.path), Samples(inputs, labels)
    )
    after = fedmeta_edge.watch(device, Samples(inputs, labels - 3.0))
    assert after.weights is None
    assert after.report()["confidence"] is None
    with pytest.raises(fedmeta_edge.EdgeError, match="no calibration"):
        fedmeta_edge.confidence(after.model, inputs)
    file = written(tmp_path / "x.npz", inputs, None)
    assert cli.run(["predict", str(values.path), "--data", file, "--abstain", "0.1"]) == 2
    assert "no calibration" in capsys.readouterr().err


def test_answers_left_open(
    small: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, labels = drawn(small, 40, 7)
    file = written(tmp_path / "x.npz", inputs, labels)
    assert cli.run(["predict", str(small.path), "--data", file, "--abstain", "0.3"]) == 0
    printed = capsys.readouterr()
    header, *rows = printed.out.splitlines()
    assert header == "class,probability,confidence"
    names = [row.split(",")[0] or None for row in rows]
    assert names == small.model.answers(inputs, 0.3)
    answered = sum(name is not None for name in names)
    assert f"on the {answered} that were answered" in printed.err
    assert cli.run(["info", str(small.path)]) == 0
    assert "calibrated on 115 samples" in capsys.readouterr().out
