"""The body in eight bits: its ranges, its rounding, and a head that adapts as before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from cli.calling import call, succeed
from export.exporting import adapted, answers, meta_model, opened, samples, stepped
from fedmeta import Adaptation, DataSettings, MetaModel, ModelSettings, load
from fedmeta.core.errors import DataError, ModelError
from fedmeta.export import activation_ranges, export_onnx
from fedmeta.export.activation_ranges import node_ranges
from fedmeta.export.c import source_ranges

HEAD = Adaptation(0.3, scope="head")
NETWORKS = {
    "mlp": (ModelSettings("mlp", hidden=(16, 12)), (5,)),
    "cnn": (ModelSettings("cnn", channels=(4, 6)), (1, 16, 16)),
    "series": (ModelSettings("cnn", channels=(4, 6)), (3, 20)),
}


def rounded(model: MetaModel, layers: list[str]) -> MetaModel:
    """The same with the weights of some layers rounded to 127 steps of their channel's maximum."""
    theta = dict(model.theta)
    for name in layers:
        weight = theta[f"{name}.weight"]
        scale = weight.flatten(1).abs().amax(1).reshape(-1, *[1] * (weight.ndim - 1)) / 127
        theta[f"{name}.weight"] = (weight / scale).round() * scale
    return replace(model, theta=theta)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("adaptable", [False, True])
def test_logits_and_steps_stay_close(kind: str, adaptable: bool, tmp_path: Path) -> None:
    settings, shape = NETWORKS[kind]
    model = meta_model(settings, shape, 4, HEAD)
    inputs, labels = samples(model, 30)
    ranges = node_ranges(model, inputs)
    plain, small = tmp_path / "plain.onnx", tmp_path / "small.onnx"
    export_onnx(model, plain, adaptable=adaptable)
    export_onnx(model, small, adaptable=adaptable, int8=ranges)
    proto = onnx.load(small)
    onnx.checker.check_model(proto, full_check=True)
    stored = {each.name: each for each in proto.graph.initializer}
    prefix, (*body, head) = "fixed/" if adaptable else "theta/", ranges
    for name in body:
        assert stored[f"{prefix}{name}.weight/int8"].data_type == onnx.TensorProto.INT8
        assert f"{prefix}{name}.weight" not in stored
    exact = onnx.numpy_helper.to_array(stored[f"theta/{head}.weight"])
    assert np.array_equal(exact, model.theta[f"{head}.weight"].numpy())
    assert sum(node.op_type == "QuantizeLinear" for node in proto.graph.node) >= len(body)
    facts = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(facts["fedmeta"])["int8"] is True
    wanted = answers(rounded(model, body), inputs)
    spread = np.abs(wanted - wanted.mean(axis=0)).max()
    if adaptable:
        found, logits = stepped(opened(small), inputs, labels, 1)
        steps = adapted(rounded(model, body), inputs, labels, 1)
        for name, value in found.items():
            moved = np.abs(steps[name] - model.theta[name.removeprefix("theta/")].numpy()).max()
            assert np.abs(value - steps[name]).max() <= 0.03 * moved
    else:
        (logits,) = opened(small).run(["logits"], {"inputs": inputs})
    assert 0 < np.abs(logits - wanted).max() <= 0.03 * spread


def test_ranges_are_the_means_over_source_nodes_and_those_of_c_code() -> None:
    federation = load(DataSettings("digits", nodes=10), seed=0)
    model = meta_model(ModelSettings("mlp", hidden=(8,)), (1, 8, 8), 10, HEAD)
    found = activation_ranges(model, federation)
    first, hidden = [], []
    for node in federation.sources:
        scaled = model.scaled(federation.inputs[np.r_[node.support, node.query]])
        after = model.module()[:3](scaled).detach()  # type: ignore[index]
        first.append((float(scaled.min()), float(scaled.max())))
        hidden.append((float(after.min()), float(after.max())))
    assert found["1"] == pytest.approx(np.mean(first, axis=0))
    assert found["3"] == pytest.approx(np.mean(hidden, axis=0))
    assert found["3"][0] < 0 < found["3"][1]
    told = source_ranges(model, federation)
    assert found["1"] == pytest.approx((told.low[0], told.high[0]))
    assert found["3"] == pytest.approx((told.low[-2], told.high[-2]))
    with pytest.raises(DataError, match="no source nodes"):
        activation_ranges(model, federation.with_nodes(federation.targets))


def test_zero_is_covered_though_no_sample_has_it(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp", hidden=(8,)), (3,), 3, HEAD)
    ranges = {**node_ranges(model, samples(model, 4)[0]), "1": (2.0, 5.1)}
    export_onnx(model, tmp_path / "m.onnx", adaptable=False, int8=ranges)
    graph = onnx.load(tmp_path / "m.onnx").graph
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    steps = [value for name, value in stored.items() if name.endswith("input/scale")]
    assert any(step == pytest.approx(5.1 / 255) for step in steps)


def test_a_constant_input_and_a_dead_channel(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp", hidden=(4,)), (3,), 3, HEAD)
    weight = model.theta["1.weight"].clone()
    weight[0] = 0
    model = replace(model, theta={**model.theta, "1.weight": weight})
    inputs = np.tile(model.scaling.mean, (2, 1)).astype(np.float32)  # all 0 once they are scaled
    export_onnx(model, tmp_path / "m.onnx", adaptable=False, int8=node_ranges(model, inputs))
    (logits,) = opened(tmp_path / "m.onnx").run(["logits"], {"inputs": inputs})
    assert np.allclose(logits, answers(model, inputs), atol=0.02)


def test_models_without_a_body_that_stays(tmp_path: Path) -> None:
    moving = meta_model(ModelSettings("mlp", hidden=(4,)), (3,), 3, Adaptation(0.1, scope="all"))
    flat = meta_model(ModelSettings("linear"), (3,), 3, HEAD)
    for model, adaptable in ((moving, True), (flat, True), (flat, False)):
        ranges = node_ranges(model, samples(model, 4)[0])
        with pytest.raises(ModelError, match="nothing to write in eight bits"):
            export_onnx(model, tmp_path / "m.onnx", adaptable=adaptable, int8=ranges)
    assert not list(tmp_path.iterdir())
    ranges = node_ranges(moving, samples(moving, 4)[0])
    export_onnx(moving, tmp_path / "m.onnx", adaptable=False, int8=ranges)  # it may predict


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    succeed("train --data digits --nodes 10 --model mlp --rounds 2 --out run")
    said = succeed("export run --int8 --adaptable --out small.onnx", "plain")
    assert "its body in eight bits" in said
    succeed("export run --adaptable --out plain.onnx")
    assert Path("small.onnx").stat().st_size < 0.8 * Path("plain.onnx").stat().st_size
    federation, model = load(DataSettings("digits", nodes=10), seed=0), MetaModel.load("run")
    node = federation.targets[0]
    inputs = federation.inputs[node.query].astype(np.float32)
    with torch.no_grad():
        wanted = model.network(model.theta, model.scaled(inputs)).numpy()
    found, _ = stepped(opened(Path("small.onnx")), inputs, federation.labels[node.query], 1)
    assert {*found} == {"theta/3.weight", "theta/3.bias"}
    asked = {"labels": federation.labels[node.query], "mask": np.ones(len(inputs), np.float32)}
    (logits,) = opened(Path("small.onnx")).run(["logits"], {"inputs": inputs, **asked})
    assert np.abs(logits - wanted).max() <= 0.05 * np.abs(wanted).max()
    outcome = call("export run/model.safetensors --int8 --out other.onnx")
    assert outcome.code == 2
    assert "no run folder" in outcome.complaint
