"""A frozen body apart: features in one file, a head that adapts in the other, no PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedmeta_edge
from fedmeta import DataSettings, MetaModel, ModelSettings, load, train
from fedmeta.export import activation_ranges, export_onnx
from models.test_backbone import BODY

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> MetaModel:
    file = tmp_path_factory.mktemp("body") / "body.py"
    file.write_text(BODY)
    data = load(DataSettings("digits", nodes=8, samples=(8, 10)), seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMETA_CACHE", "off")
        run = train(data, ModelSettings(backbone=f"{file}:wide", hidden=(5,)), rounds=2)
    return run.meta_model


DATA = load(DataSettings("digits", nodes=8, samples=(8, 10)), seed=0)
PIXELS, LABELS = DATA.inputs[:16], DATA.labels[:16]


@pytest.fixture(scope="module")
def pair(trained: MetaModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pair") / "model.onnx"
    export_onnx(trained, file, adaptable=True)
    return file


def test_the_same_answers(trained: MetaModel, pair: Path) -> None:
    assert sorted(each.name for each in pair.parent.iterdir()) == ["model.body.onnx", "model.onnx"]
    assert pair.stat().st_size < pair.with_name("model.body.onnx").stat().st_size / 5
    model = fedmeta_edge.load(pair)
    assert model.input_shape == (1, 8, 8)
    adapted = fedmeta_edge.adapt(model, PIXELS[:10], LABELS[:10], steps=3)
    found = fedmeta_edge.predict(model, PIXELS, adapted.weights)
    wanted = trained.adapt(PIXELS[:10], LABELS[:10], steps=3).predict(PIXELS).numpy()
    assert np.abs(found - wanted).max() < 1e-4
    assert (
        np.abs(fedmeta_edge.predict(model, PIXELS) - trained.predict(PIXELS).numpy()).max() < 1e-4
    )
    _, decision = fedmeta_edge.adapt_if_it_helps(model, PIXELS, LABELS)
    assert decision.counted > 0


def test_a_device_keeps_both(pair: Path, tmp_path: Path) -> None:
    device = fedmeta_edge.begin(tmp_path / "mine", pair)
    samples = fedmeta_edge.Samples(PIXELS.astype(np.float32), LABELS)
    device, _ = fedmeta_edge.learn(device, samples)
    again = fedmeta_edge.reopen(tmp_path / "mine")
    assert again.model.body is not None
    logits = [each.model.logits(PIXELS, each.weights) for each in (device, again)]
    assert np.array_equal(*logits)


def test_another_body_is_refused(pair: Path, tmp_path: Path, trained: MetaModel) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(pair.read_bytes())
    with pytest.raises(fedmeta_edge.EdgeError, match="cannot read"):
        fedmeta_edge.load(other)
    (tmp_path / "model.body.onnx").write_bytes(pair.read_bytes())  # one of ours, not that one
    with pytest.raises(fedmeta_edge.EdgeError, match="not the body"):
        fedmeta_edge.load(other)


def test_a_body_in_eight_bits(trained: MetaModel, pair: Path, tmp_path: Path) -> None:
    small = tmp_path / "model.onnx"
    export_onnx(trained, small, adaptable=True, int8=activation_ranges(trained, DATA))
    sizes = [each.with_name("model.body.onnx").stat().st_size for each in (small, pair)]
    assert sizes[0] < 0.35 * sizes[1]
    rounded, whole = (fedmeta_edge.load(each).body_features(PIXELS) for each in (small, pair))
    assert 0 < np.abs(rounded - whole).mean() < 0.1
