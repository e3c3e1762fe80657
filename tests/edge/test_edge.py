"""The runtime for devices: adapts and predicts as PyTorch does, and refuses what it cannot use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedmeta_edge
from edge.conftest import Exported
from export.exporting import adapted, answers, farthest, samples
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


def test_only_if_it_helps(values: Exported) -> None:
    model = fedmeta_edge.load(values.path)
    inputs, _ = samples(values.model, 30)
    easy = answers(values.model, inputs) + 3.0  # one step moves the bias towards it
    helped = fedmeta_edge.adapt_if_it_helps(model, inputs, easy)
    assert helped.losses is not None
    assert helped.losses[1] < helped.losses[0]
    assert farthest(helped.weights, adapted(values.model, inputs, easy, 1)) <= 1e-5


def test_the_meta_model_stays_where_samples_disagree(values: Exported) -> None:
    model = fedmeta_edge.load(values.path)
    inputs = np.zeros((2, 2), np.float32)
    level = answers(values.model, inputs)
    labels = level + np.array([[10.0], [-10.0]], np.float32)  # whatever adapts, the other is worse
    stays = fedmeta_edge.adapt_if_it_helps(model, inputs, labels)
    assert stays.steps == 0
    own = {f"theta/{name}": leaf.numpy() for name, leaf in values.model.theta.items()}
    assert farthest(stays.weights, own) == 0


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
    assert "verified" in shown
    assert cli.run(["adapt", str(values.path), *given, "--steps", "3", "-o", str(out)]) == 0
    assert "3 steps on 9 samples" in capsys.readouterr().out
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
