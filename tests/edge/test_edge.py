"""The runtime for devices: adapts and predicts as PyTorch does, and refuses what it cannot use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from torch import Tensor

import fedmeta_edge
from edge.conftest import Exported
from export.exporting import Array, adapted, answers, farthest, meta_model, samples
from fedmeta import Adaptation, ModelSettings
from fedmeta.core.decision import CANDIDATES, decide
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Objective
from fedmeta.core.sample_sets import Samples
from fedmeta.export import export_onnx
from fedmeta.export.checksum import with_checksum
from fedmeta.export.signing import check_key, sign
from fedmeta_edge import cli
from fedmeta_edge.batches import batch_mask


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_mini_batches_are_those_of_pytorch(digits: Exported, steps: int) -> None:
    model = fedmeta_edge.load(digits.path)
    inputs, labels = samples(digits.model, 12)
    found = fedmeta_edge.adapt(model, inputs, labels, steps)
    assert found.steps == steps
    assert farthest(found.weights, adapted(digits.model, inputs, labels, steps)) <= 1e-5
    probabilities = fedmeta_edge.predict(model, inputs, found.weights)
    assert np.allclose(probabilities.sum(axis=1), 1)
    wanted = answers(digits.model, inputs, found.weights).argmax(axis=1)
    names = fedmeta_edge.classify(model, inputs, found.weights)
    assert names == [digits.model.task.class_names[number] for number in wanted]


def test_batches_differ_by_step_and_seed() -> None:
    masks = [batch_mask(20, 5, seed, step) for seed in (0, 1) for step in (0, 1)]
    assert all(mask.sum() == 5 for mask in masks)
    assert len({mask.tobytes() for mask in masks}) == 4


def decided(given: Exported, inputs: Array, labels: Array) -> tuple[str, str]:
    """What the runtime and PyTorch decide, with the same losses."""
    model = fedmeta_edge.load(given.path)
    found, decision = fedmeta_edge.adapt_if_it_helps(model, inputs, labels)
    classes = given.model.task.class_names
    named = np.array(classes)[labels] if classes else labels
    wanted = given.model.adapt(inputs, named, decide=True)
    about = wanted.about["decision"]
    assert decision.counted == about["counted"]
    losses = [about["losses"][name] for name in decision.losses]
    assert list(decision.losses.values()) == pytest.approx(losses, rel=1e-3)
    theta = {f"theta/{name}": leaf.numpy() for name, leaf in wanted.theta.items()}
    assert farthest(found.weights, theta) <= 1e-4
    return decision.choice, about["choice"]


def test_decisions_are_those_of_pytorch(digits: Exported, values: Exported) -> None:
    inputs, labels = samples(digits.model, 40)
    flipped = answers(digits.model, inputs).argmin(axis=1)
    for count in (1, 2, 5, 12, 40):
        for classes in (labels[:count], flipped[:count], labels[:count] % 2):
            ours, theirs = decided(digits, inputs[:count], classes)
            assert ours == theirs
    assert decided(digits, inputs, flipped) == ("prototypes", "prototypes")
    right = answers(digits.model, inputs[:1]).argmax(axis=1)
    assert decided(digits, inputs[:1], right) == ("none", "none")
    inputs, _ = samples(values.model, 30)
    easy = answers(values.model, inputs) + 3.0  # steps move the bias towards it
    assert decided(values, inputs, easy) == ("several", "several")
    inputs = np.zeros((2, 2), np.float32)
    level = answers(values.model, inputs)
    apart = level + np.array([[10.0], [-10.0]], np.float32)  # whatever adapts, the other is worse
    assert decided(values, inputs, apart) == ("none", "none")


@pytest.mark.parametrize("method", ["prototypes", "head+prototypes"])
def test_a_model_that_adapts_by_class_means(method: Any, tmp_path: Path) -> None:
    rule = Adaptation(4.0, scope="head", method=method)
    given = meta_model(ModelSettings("mlp", hidden=(6,)), (4,), 3, rule)
    export_onnx(given, tmp_path / "means.onnx", adaptable=True)
    model = fedmeta_edge.load(tmp_path / "means.onnx")
    assert model.by_means
    inputs, labels = samples(given, 9)
    for steps in (0, 1, 5):  # means are means, however often they are taken
        found = fedmeta_edge.adapt(model, inputs, labels, steps)
        wanted = adapted(given, inputs, labels, min(steps, 1))
        assert farthest(found.weights, wanted) <= 1e-5
    sharper = replace(given, adaptation=replace(rule, step_size=16.0))
    found = fedmeta_edge.adapt(model, inputs, labels, step_size=16.0)
    assert farthest(found.weights, adapted(sharper, inputs, labels, 1)) <= 1e-4
    both, flipped = Exported(given, tmp_path / "means.onnx"), answers(given, inputs).argmin(axis=1)
    assert decided(both, inputs, flipped) == ("prototypes", "prototypes")
    assert decided(both, inputs[:2], labels[:2] * 0)[0] in ("none", "prototypes")
    right = answers(given, inputs[:1]).argmax(axis=1)
    assert decided(both, inputs[:1], right) == ("none", "none")


def test_a_thousand_support_sets_decide_alike(tmp_path: Path) -> None:
    given = meta_model(ModelSettings("mlp", hidden=(6,)), (4,), 3, Adaptation(0.5, scope="head"))
    export_onnx(given, tmp_path / "small.onnx", adaptable=True)
    model, chosen = fedmeta_edge.load(tmp_path / "small.onnx"), Counter[str]()
    objective = Objective(lambda theta, x, _key: given.network(theta, x), given.loss)

    def choice(inputs: Tensor, labels: Tensor) -> Tensor:
        support = Samples(inputs, labels, torch.ones(len(labels)))
        return decide(objective, given.adaptation, given.theta, support).choice

    for count in range(1, 21):
        rng = np.random.default_rng(count)
        labels = rng.integers(rng.integers(1, 4, size=(50, 1)), size=(50, count))
        middles = rng.normal(size=(50, 3, 4)) * rng.choice([0.3, 1.0, 3.0], size=(50, 1, 1))
        inputs = middles[np.arange(50)[:, None], labels] + rng.normal(size=(50, count, 4))
        inputs = inputs.astype(np.float32)
        scaled = given.scaled(inputs.reshape(-1, 4)).reshape(inputs.shape)
        with torch.no_grad():
            theirs = torch.func.vmap(choice)(scaled, torch.from_numpy(labels))
        for x, y, place in zip(inputs, labels, theirs.tolist(), strict=True):
            _, ours = fedmeta_edge.adapt_if_it_helps(model, x, y)
            assert ours.choice == CANDIDATES[place]
            chosen[ours.choice] += 1
        names = np.array(given.task.class_names)[labels[0]]
        told = given.adapt(inputs[0], names, decide=True).about["decision"]["choice"]
        assert told == CANDIDATES[theirs[0]]
    assert set(chosen) == {*CANDIDATES}
    assert chosen.total() == 1000


def test_the_command_line(
    values: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "mine.csv", tmp_path / "adapted.npz"
    inputs, labels = samples(values.model, 9)
    rows = [f"{y[0]},{x[1]},ignored,{x[0]}" for x, y in zip(inputs, labels, strict=True)]
    table.write_text("\n".join(["y,height,note,width", *rows]))
    given = ["--data", str(table), "--label", "y"]
    assert cli.run(["info", str(values.path)]) == 0
    shown = capsys.readouterr().out
    assert "width, height" in shown
    assert "checksum ok; not signed" in shown
    assert "verified" not in shown
    assert cli.run(["adapt", str(values.path), *given, "--steps", "3", "-o", str(out)]) == 0
    assert "3 steps on 9 samples" in capsys.readouterr().out
    kept = tmp_path / "decided.npz"
    assert cli.run(["adapt", str(values.path), *given, "--decide", "-o", str(kept)]) == 0
    assert "of 9 samples left out: none " in capsys.readouterr().out
    assert cli.run(["predict", str(values.path), *given, "--weights", str(out)]) == 0
    printed = capsys.readouterr()
    found = np.array([[float(line)] for line in printed.out.splitlines()[1:]])
    wanted = answers(values.model, inputs, adapted(values.model, inputs, labels, 3))
    assert np.abs(found - wanted).max() < 1e-4
    assert "mse" in printed.err


def test_images_in_npz_files(digits: Exported, tmp_path: Path) -> None:
    model = fedmeta_edge.load(digits.path)
    images = np.arange(128, dtype=np.uint8).reshape(2, 8, 8)
    for name, x in [("plain", images), ("last", images[..., None]), ("first", images[:, None])]:
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.array(["class 3", "class 0"]))
        read = fedmeta_edge.read_samples(tmp_path / f"{name}.npz", model)
        assert np.array_equal(read.inputs, images[:, None].astype(np.float32))
        assert read.labels is not None
        assert read.labels.tolist() == [3, 0]
    np.savez(tmp_path / "numbers.npz", x=images, y=np.array([9, 1]))
    read = fedmeta_edge.read_samples(tmp_path / "numbers.npz", model)
    assert read.labels is not None
    assert read.labels.tolist() == [9, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("width,height\n1,2\n", "has no labels 'label'"),
        ("width,label\n1,2\n", "has no column 'height'"),
        ("width,height,label\n1,2\n", "row 1 has 2 values for 3 columns"),
        ("width,height,label\n1,x,2\n", "column 'height', row 1 is 'x', not a number"),
        ("width,height,label\n1,nan,2\n", "sample 1"),
        ("width,height,label\n1,2,many\n", "finite numbers per sample"),
        ("width,height,label\n", "has no samples"),
        ("width;height;label\n1;2;3\n", "has ';' between its columns"),
        ("", "has no column"),
    ],
)
def test_bad_tables(
    values: Exported, tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    out = tmp_path / "kept.npz"
    out.write_text("what was there")
    line = ["adapt", str(values.path), "--data", str(tmp_path / "bad.csv"), "-o", str(out)]
    assert cli.run(line) == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 1
    assert out.read_text() == "what was there"


def test_bad_arrays_and_classes(digits: Exported, tmp_path: Path) -> None:
    model = fedmeta_edge.load(digits.path)
    good, file = np.zeros((2, 1, 8, 8), np.float32), tmp_path / "bad.npz"
    for arrays, words in [
        ({"x": good, "y": np.array(["class 0", "class 99"])}, "knows no class 'class 99'"),
        ({"x": good, "y": np.array([0, 10])}, "knows no class '10'"),
        ({"x": good[:, :, :7], "y": np.array([0, 1])}, r"shape \(1, 7, 8\)"),
        ({"x": good, "y": np.array([0, 1, 2])}, "2 samples and 3 labels"),
        ({"z": good}, "no array 'x'"),
        ({"x": np.array(["a", "b"])}, "give numbers"),
    ]:
        np.savez(file, **arrays)
        with pytest.raises(fedmeta_edge.EdgeError, match=words):
            fedmeta_edge.read_samples(file, model)
    np.savez(file, x=np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(fedmeta_edge.EdgeError, match="plain arrays"):
        fedmeta_edge.read_samples(file, model)
    file.write_bytes(b"PK")
    with pytest.raises(fedmeta_edge.EdgeError, match="plain arrays"):
        fedmeta_edge.read_samples(file, model)
    with pytest.raises(fedmeta_edge.EdgeError, match=r"\.csv or \.npz"):
        fedmeta_edge.read_samples(digits.path, model)


def test_damaged_and_foreign_models(values: Exported, tmp_path: Path) -> None:
    content, file = values.path.read_bytes(), tmp_path / "bad.onnx"
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for bad, words in [
        (flipped, "is damaged"),
        (content[:-1], "cut short"),
        (content[:-64] + b"0" * 64, "is damaged"),
        (b"", "cut short"),
    ]:
        file.write_bytes(bad)
        with pytest.raises(fedmeta_edge.EdgeError, match=words):
            fedmeta_edge.load(file)
    with pytest.raises(fedmeta_edge.EdgeError, match="check the path"):
        fedmeta_edge.load(tmp_path / "none.onnx")


def test_weights_of_another_model(values: Exported, digits: Exported, tmp_path: Path) -> None:
    model, other = fedmeta_edge.load(values.path), fedmeta_edge.load(digits.path)
    mine = fedmeta_edge.adapt(model, *samples(values.model, 4))
    fedmeta_edge.write_weights(tmp_path / "w.npz", model, mine)
    assert farthest(fedmeta_edge.read_weights(tmp_path / "w.npz", model), mine.weights) == 0
    with pytest.raises(fedmeta_edge.EdgeError, match="weights of another model"):
        fedmeta_edge.read_weights(tmp_path / "w.npz", other)
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    with pytest.raises(fedmeta_edge.EdgeError, match="no adapted weights"):
        fedmeta_edge.read_weights(tmp_path / "x.npz", model)
    with pytest.raises(fedmeta_edge.EdgeError, match="cannot write"):
        fedmeta_edge.write_weights(tmp_path / "no/folder.npz", model, mine)


def test_inference_models_do_not_adapt(fixed: Exported) -> None:
    model = fedmeta_edge.load(fixed.path)
    inputs, labels = samples(fixed.model, 4)
    assert np.abs(fedmeta_edge.predict(model, inputs) - answers(fixed.model, inputs)).max() < 1e-5
    with pytest.raises(fedmeta_edge.EdgeError, match="--adaptable"):
        fedmeta_edge.adapt(model, inputs, labels)
    with pytest.raises(fedmeta_edge.EdgeError, match="has its weights inside"):
        fedmeta_edge.predict(model, inputs, {"theta/x": np.zeros(1, np.float32)})


def test_a_step_size_of_ones_own(values: Exported) -> None:
    model = fedmeta_edge.load(values.path)
    inputs, labels = samples(values.model, 6)
    rule = replace(values.model.adaptation, step_size=0.02)
    wanted = adapted(replace(values.model, adaptation=rule), inputs, labels, 2)
    found = fedmeta_edge.adapt(model, inputs, labels, 2, step_size=0.02)
    assert farthest(found.weights, wanted) <= 1e-5
    assert farthest(found.weights, adapted(values.model, inputs, labels, 2)) > 1e-4
    for size in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(fedmeta_edge.EdgeError, match="above 0"):
            fedmeta_edge.adapt(model, inputs, labels, step_size=size)


def test_what_it_takes(
    digits: Exported, values: Exported, fixed: Exported, capsys: pytest.CaptureFixture[str]
) -> None:
    for each, count, words in ((digits, 12, "12 samples\n"), (values, 1, "1 sample\n")):
        assert cli.run(["measure", str(each.path), "--samples", str(count)]) == 0
        printed = capsys.readouterr().out
        assert f"import and one step on {words}" in printed
        assert "onnxruntime" in printed
    for line, words in [
        (["measure", str(digits.path), "--samples", "0"], "at least 1"),
        (["measure", str(fixed.path)], "--adaptable"),
    ]:
        assert cli.run(line) == 2
        assert words in capsys.readouterr().err


def test_too_large_steps_are_told(values: Exported) -> None:
    model = fedmeta_edge.load(values.path)
    inputs, labels = samples(values.model, 4)
    with pytest.raises(fedmeta_edge.EdgeError, match="no longer finite"):
        fedmeta_edge.adapt(model, inputs * 1e6, labels, steps=50)
    with pytest.raises(fedmeta_edge.EdgeError, match="at least 0"):
        fedmeta_edge.adapt(model, inputs, labels, steps=-1)


def _changed(path: Path, change: Callable[[onnx.ModelProto], None], out: Path) -> Path:
    """The same model with a change and the checksum that fits it."""
    content = path.read_bytes()
    model = onnx.load_from_string(content)
    del model.metadata_props[-1]
    change(model)
    facts = json.loads(model.metadata_props[-1].value)
    del model.metadata_props[-1]
    out.write_bytes(with_checksum(model, facts))
    return out


def _outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="other.bin")


def _loop(model: onnx.ModelProto) -> None:
    model.graph.node.add(op_type="Loop", output=["x"])


def _foreign(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.microsoft"


def _branch(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
    attribute.g.name = "inner"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_outside, "weights in another file"),
        (_loop, "the operator Loop"),
        (_foreign, "operators of com.microsoft"),
        (_branch, "a graph within its graph"),
    ],
)
def test_graphs_that_were_not_exported_are_refused_unrun(
    values: Exported, tmp_path: Path, change: Callable[[onnx.ModelProto], None], words: str
) -> None:
    fedmeta_edge.load(_changed(values.path, lambda _: None, tmp_path / "same.onnx"))
    with pytest.raises(fedmeta_edge.EdgeError, match=words):
        fedmeta_edge.load(_changed(values.path, change, tmp_path / "changed.onnx"))


def test_signatures(values: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, private, public = tmp_path / "m.onnx", tmp_path / "key.pem", tmp_path / "key.pub"
    model.write_bytes(values.path.read_bytes())
    key = Ed25519PrivateKey.generate()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    check = ["info", str(model), "--require-signature", str(public)]
    assert cli.run(check) == 2
    assert "is not signed" in capsys.readouterr().err
    sign(model, private)
    assert cli.run(check) == 0
    assert f"checksum ok, signed by {public}" in capsys.readouterr().out
    other = _changed(model, lambda each: each.graph.node[0].input.append(""), model)
    assert cli.run(["info", str(other), "--require-signature", str(public)]) == 2
    assert "was not signed by the owner" in capsys.readouterr().err
    with pytest.raises(SettingError, match="holds no private key"):
        sign(model, public)
    with pytest.raises(SettingError, match="openssl genpkey -algorithm ed25519"):
        check_key(tmp_path / "none.pem")
