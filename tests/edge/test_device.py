"""A device that keeps what it learned: it falls back, notices drift, and loses nothing."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(
    "change",
    [
        {"watch": None},
        {"watch": {"running": "high"}},
        {"watch": {"samples": -1}},
        {"watch": {"samples": 40}},  # and no running mean
        {"watch": {"total": float("nan")}},
        {"watch": {"fallbacks": float("inf")}},
        {"watch": {"leads": [0.0] * 1000}},
        {"watch": {"leads": "many"}},
        {"head": None},  # which answers
        {"choice": {"a": 1}},
        {"model": "../other"},
        {"model": None},
        {"head": "/etc/passwd"},
    ],
)
def test_a_state_that_makes_no_sense_is_refused(
    change: dict[str, Any], small: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedmeta_edge.learn(fedmeta_edge.begin(tmp_path, small.path), Samples(*drawn(small, 30, 1)))
    state = json.loads((tmp_path / STATE).read_text())
    assert state["watch"]["adapted"]
    for name, value in change.items():
        inner = isinstance(value, dict) and name == "watch"
        state[name] = {**state[name], **value} if inner else value
    (tmp_path / STATE).write_text(json.dumps(state))
    assert cli.run(["status", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


class PowerLoss(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_a_device_that_is_ended_anywhere_has_its_state_of_before_or_after(
    small: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every rename and removal, with another model of several files."""
    monkeypatch.setattr("fedmeta.export.body._WORTH_A_FILE", 0)
    folder, given = tmp_path / "device", tmp_path / "given"
    models = [given / name / "model.onnx" for name in ("one", "two")]
    for seed, model in enumerate(models):
        model.parent.mkdir(parents=True)
        _with_a_body(seed, model)
    samples = [Samples(*_labelled(each, seed)) for seed, each in enumerate(models)]
    old, _ = fedmeta_edge.learn(fedmeta_edge.begin(folder, models[0]), samples[0])
    kept = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    new, _ = fedmeta_edge.learn(fedmeta_edge.begin(tmp_path / "other", models[1]), samples[1])
    wanted = {each.model.checksum: each for each in (old, new)}
    assert len(wanted) == 2
    calls, seen = {"left": 0}, set()

    def ended(name: str, before: bool) -> None:
        act = getattr(Path, name)

        def acting(path: Path, *more: Any, **named: Any) -> Any:
            calls["left"] -= 1
            if before and calls["left"] == 0:
                raise PowerLoss
            done = act(path, *more, **named)
            if not before and calls["left"] == 0:
                raise PowerLoss
            return done

        patch.setattr(Path, name, acting)

    for before in (True, False):
        for number in range(1, 40):
            shutil.rmtree(folder)
            for file, content in kept.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            calls["left"] = number
            with monkeypatch.context() as patch:
                for name in ("replace", "unlink", "mkdir"):
                    ended(name, before)
                try:
                    fedmeta_edge.learn(fedmeta_edge.begin(folder, models[1]), samples[1])
                except PowerLoss:
                    pass
                else:
                    break
            found = fedmeta_edge.reopen(folder)
            same = wanted[found.model.checksum]
            seen.add(found.model.checksum)
            assert found.watch == same.watch
            logits = [each.model.logits(samples[0].inputs, each.weights) for each in (found, same)]
            assert np.array_equal(*logits)
            fedmeta_edge.learn(found, samples[0])  # which clears what was left
            assert not [*folder.rglob("*.tmp")]
        else:
            raise AssertionError("it never came to its end")
    assert seen == {*wanted}


def _with_a_body(seed: int, file: Path) -> None:
    """A model with a frozen body, which is a file of its own, and a head."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).requires_grad_(False)
    network = nn.Sequential(OrderedDict(body=body.eval(), head=nn.Linear(8, 3)))
    rule = Adaptation(0.5, scope="head", head=("head.weight", "head.bias"))
    export_onnx(meta_model(network, (4,), 3, rule), file, adaptable=True)
    assert file.with_name("model.body.onnx").is_file()


def _labelled(file: Path, seed: int) -> tuple[Array, Array]:
    model = fedmeta_edge.load(file)
    inputs = np.random.default_rng(seed).normal(size=(20, 4)).astype(np.float32)
    return inputs, (model.logits(inputs).argmax(axis=1) + 1) % 3


def test_folders_of_older_versions_are_read(small: Exported, tmp_path: Path) -> None:
    """They have the model as a file beside the state."""
    device, _ = fedmeta_edge.learn(
        fedmeta_edge.begin(tmp_path, small.path), Samples(*drawn(small, 30, 1))
    )
    state = json.loads((tmp_path / STATE).read_text())
    (tmp_path / state["model"] / "model.onnx").rename(tmp_path / f"{state['model']}.onnx")
    (tmp_path / state["model"]).rmdir()
    state["model"] += ".onnx"
    (tmp_path / STATE).write_text(json.dumps(state))
    again = fedmeta_edge.watch(fedmeta_edge.reopen(tmp_path), Samples(*drawn(small, 3, 2)))
    found = fedmeta_edge.reopen(tmp_path)
    assert found.watch == again.watch
    assert found.head is not None
    assert device.head is not None
    assert farthest(found.head, device.head) == 0


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
