"""The body in eight bits: as near to float32 as its steps allow, from sums that nodes tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.c_device import CHECKED, Array, Script, apart, built, moving, needs_gcc
from export.exporting import answers, meta_model, samples
from export.test_c_hostile import ranges
from fedmeta import Adaptation, Federation, ModelSettings, Node
from fedmeta.core.errors import DataError, ModelError
from fedmeta.export.c import export_c, source_ranges
from fedmeta.export.c.quantisation import Scale
from fedmeta.export.c.ranges import node_extremes

HEAD = Adaptation(0.3, scope="head")
NETWORKS = {
    "elu": (ModelSettings("cnn"), (6, 64), 6),
    "average": (ModelSettings("cnn", (8, 6), last_pooling="average"), (2, 12, 13), 4),
    "relu": (ModelSettings("mlp", hidden=(30, 20), activation="relu"), (9,), 4),
    "leaky relu": (ModelSettings("cnn", (8,), activation="leaky-relu"), (1, 9, 9), 4),
    "tanh": (ModelSettings("mlp", activation="tanh"), (9,), 4),
}


@needs_gcc
@pytest.mark.parametrize("name", NETWORKS)
def test_near_float32(name: str, tmp_path: Path) -> None:
    model = meta_model(*NETWORKS[name], HEAD)
    export_c(model, tmp_path, int8=ranges(model, 400))
    inputs, labels = samples(model, 20)
    script = Script(model, len(moving(model)))
    for each in inputs:
        script.predict(each)
    for each, label in zip(inputs, labels, strict=True):
        script.add(each, label)
    script.step()
    script.save()
    script.intact()
    found = script.run(built(tmp_path, model, CHECKED), tmp_path)
    assert found.pop() == 1
    outputs = np.array([each for _, each in found[:20]])
    assert apart(outputs, answers(model, inputs)) < 0.1
    adapted = model.adapt(inputs, np.array(model.task.class_names)[labels])
    step = moving(model, dict(adapted.theta)) - moving(model)
    assert apart(found[-1] - moving(model), step) < 0.1


def test_it_takes_less(tmp_path: Path) -> None:
    model = meta_model(*NETWORKS["elu"], HEAD)
    bits, plain = (export_c(model, tmp_path, int8=each) for each in (ranges(model), None))
    assert bits.ram < plain.ram
    assert bits.constants < plain.constants


@needs_gcc
def test_depthwise_convolutions_and_products_are_exact_on_whole_numbers(tmp_path: Path) -> None:
    """Inputs, weights and results that eight bits hold exactly come out exactly."""
    network = nn.Sequential(nn.Conv1d(2, 4, 3, groups=2, padding=1), nn.Flatten(), nn.Linear(8, 2))
    with torch.no_grad():
        network[0].weight.copy_(torch.randint(-2, 3, network[0].weight.shape).float())
        network[0].weight[:, 0, 0] = 127 / 64  # the largest of every channel: a step of 1/64
        network[0].weight[:, 0, 1:] = torch.tensor([1.0, -0.5])
        network[0].bias.fill_(1.0)
    model = meta_model(network, (2, 2), 2, HEAD)
    low, high = (-128.0,) * 3, (127.0,) * 3
    model = type(model)(
        **{**vars(model), "scaling": type(model.scaling)(np.zeros(()), np.ones(()))}
    )
    found = ranges(model)
    export_c(model, tmp_path, int8=type(found)(low, high))
    script = Script(model, len(moving(model)))
    inputs = np.array([[[2, 4], [-6, 8]], [[0, 64], [-64, 32]]], np.float32)
    for each in inputs:
        script.predict(each)
    got = np.array([each for _, each in script.run(built(tmp_path, model, CHECKED), tmp_path)])
    results: Array = network[0](torch.from_numpy(inputs)).detach().numpy()
    rounded = torch.from_numpy(np.floor(results + 0.5))
    wanted = network[2](rounded.flatten(1)).detach().numpy()
    assert np.abs(got - wanted).max() < 1e-4


def test_a_scale_holds_its_range_and_zero() -> None:
    for low, high in [(-1.0, 6.0), (0.5, 3.0), (-4.0, -1.0), (0.0, 0.0)]:
        scale = Scale.of(low, high)
        numbers = np.linspace(min(low, 0), max(high, 0), 50)
        assert np.abs(scale.real(scale.whole(numbers)) - numbers).max() <= 0.51 * scale.step
        assert scale.real(scale.whole(np.zeros(1)))[0] == 0


def test_nodes_tell_extremes_alone_and_the_platform_adds_them_up() -> None:
    model = meta_model(*NETWORKS["tanh"], HEAD)
    inputs, labels = samples(model, 12)
    rows = np.arange(12)
    nodes = [
        Node("a", "source", rows[:2], rows[2:5]),
        Node("b", "source", rows[5:7], rows[7:9]),
        Node("c", "target", rows[9:10], rows[10:]),
    ]
    federation = Federation(inputs, labels, model.task, nodes, "test")
    found = source_ranges(model, federation)
    told = [node_extremes(model, model.scaled(inputs[part])) for part in (rows[:5], rows[5:9])]
    mean = (told[0].double() + told[1].double()) / 2
    assert np.allclose(found.low, mean[0])
    assert np.allclose(found.high, mean[1])
    assert mean.shape == (2, 4)  # inputs, two products, one activation
    outside = federation.with_nodes([nodes[2]])
    with pytest.raises(DataError, match="no source nodes"):
        source_ranges(model, outside)


def test_what_has_no_such_form_is_named(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    model = meta_model(network, (4,), 3, HEAD)
    with pytest.raises(ModelError, match="layer '1' normalises"):
        export_c(model, tmp_path, int8=ranges(model))
    model = meta_model(ModelSettings("gru", hidden=(4,)), (5, 3), 3, HEAD)
    with pytest.raises(ModelError, match=r"layer 'layers.0.state' is of a recurrent network"):
        export_c(model, tmp_path, int8=ranges(model))
