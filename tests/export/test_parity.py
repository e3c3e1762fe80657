"""What an exported graph computes is what PyTorch computes, to 1e-5, for every built-in network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.exporting import (
    adapted,
    answers,
    closest_call,
    doubled,
    farthest,
    meta_model,
    opened,
    samples,
    stepped,
)
from fedmeta import Adaptation, MetaModel, ModelSettings, Scaling
from fedmeta.core.errors import ModelError
from fedmeta.export import export_onnx
from fedmeta.models.losses import Balanced

PARITY = 1e-5
TOSS_UP = 1e-6
"""Lead of a maximum that float32 does not tell: PyTorch is as far from its own float64 there."""
MOST = 20
PAPER = ModelSettings("auto", last_pooling="average", initialisation="truncated-normal")
NETWORKS = {
    "digits": (ModelSettings("mlp"), (1, 8, 8), 10),
    "Fashion-MNIST": (PAPER, (1, 28, 28), 10),
}
MORE = {
    "linear": (ModelSettings("linear"), (6,), 3),
    "relu": (ModelSettings("cnn", channels=(4, 6), activation="relu"), (1, 17, 18), 5),
    "leaky relu": (
        ModelSettings("cnn", (4, 5), activation="leaky-relu", last_pooling="average"),
        (2, 19, 16),
        3,
    ),
    "tanh": (ModelSettings("mlp", hidden=(7, 5), activation="tanh"), (4,), 3),
    "series": (ModelSettings("cnn"), (6, 128), 6),
    "series, average": (ModelSettings("cnn", (4, 6), last_pooling="average"), (3, 17), 4),
    "CIFAR-10": (PAPER, (3, 32, 32), 10),
    "CIFAR-100": (PAPER, (3, 32, 32), 100),
}


def check(model: MetaModel, path: Path, counts: tuple[int, ...] = (1, 7, MOST)) -> None:
    export_onnx(model, path, adaptable=True)
    session = opened(path)
    for count in counts:
        for constant in (False, True):
            inputs, labels = samples(model, count, constant)
            for steps in (1, 5):
                found, logits = stepped(session, inputs, labels, steps)
                error = farthest(found, adapted(model, inputs, labels, steps))
                if error > PARITY:  # of random pixels one may lead by less than rounding decides
                    assert not constant, (count, steps, error)
                    assert steps > 1, (count, error)
                    assert closest_call(model, inputs, labels, steps) < TOSS_UP, (count, error)
                assert {*found} == {f"theta/{name}" for name in model.adaptation.moves(model.theta)}
                before = adapted(model, inputs, labels, steps - 1)
                wanted = answers(model, inputs, before)
                assert np.abs(logits - wanted).max() <= 10 * PARITY * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, tmp_path: Path) -> None:
    check(meta_model(*NETWORKS[name], Adaptation(0.01)), tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_networks(name: str, tmp_path: Path) -> None:
    check(meta_model(*MORE[name], Adaptation(0.01)), tmp_path / "model.onnx")


def test_head_alone_with_learned_steps(tmp_path: Path) -> None:
    network = ModelSettings("cnn", channels=(4,))
    model = meta_model(network, (1, 16, 16), 3, Adaptation(0.05, scope="head", learned="parameter"))
    factors = {n: torch.rand_like(f) + 0.5 for n, f in (model.adaptation.factors or {}).items()}
    model = replace(model, adaptation=replace(model.adaptation, factors=factors))
    check(model, tmp_path / "model.onnx")


def test_a_head_that_is_not_declared_last(tmp_path: Path) -> None:
    torch.manual_seed(0)  # a norm over three nearly equal values would magnify rounding
    network = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    rule = replace(Adaptation(0.1, scope="head"), head=("0.weight", "0.bias"))
    check(meta_model(network, (4,), 3, rule), tmp_path / "model.onnx")


def test_weighted_classes(tmp_path: Path) -> None:
    loss = Balanced((0.4, 2.8, 11.0))
    model = meta_model(ModelSettings("mlp"), (4,), 3, Adaptation(0.01), loss=loss)
    check(model, tmp_path / "model.onnx")


@pytest.mark.parametrize("scaled", [True, False])
def test_regression(scaled: bool, tmp_path: Path) -> None:
    rule = Adaptation(0.05, learned="tensor")
    model = meta_model(ModelSettings("mlp"), (2,), 2, rule, "regression")
    if not scaled:
        model = replace(model, scaling=replace(model.scaling, labels=None))
    check(model, tmp_path / "model.onnx")


def test_a_prediction_alone_is_in_the_unit_of_the_labels(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp"), (2,), 2, Adaptation(0.05), "regression")
    export_onnx(model, tmp_path / "model.onnx", adaptable=False)
    inputs, _ = samples(model, 5)
    (found,) = opened(tmp_path / "model.onnx").run(["logits"], {"inputs": inputs})
    values, outputs = model.scaling.labels, model.network(model.theta, model.scaled(inputs))
    assert values is not None
    wanted = outputs.detach().numpy() * values.deviation + values.mean
    assert np.abs(found - wanted).max() < 1e-5
    assert found.mean() > 4  # the labels' mean is about 7, what the network says about 0
    assert np.allclose(model.predict(inputs).numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("part", ["label_mean", "label_deviation"])
def test_a_graph_that_scales_labels_otherwise_is_refused(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = meta_model(ModelSettings("mlp"), (2,), 2, Adaptation(0.05), "regression")
    right = Scaling.tensors
    monkeypatch.setattr(
        Scaling, "tensors", lambda own: {**right(own), part: right(own)[part] * 1.01}
    )
    with pytest.raises(ModelError, match="other numbers than PyTorch"):
        export_onnx(model, tmp_path / "model.onnx", adaptable=True)


class Mixed(nn.Module):
    """What users have: groups, strides, dilation, transposed, frozen, tied, norms, own borders."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, dilation=2, padding=2, bias=False)
        self.back = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(3, 3)
        self.last.weight = nn.Parameter(self.last.weight)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.last.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = self.second(nn.functional.gelu(self.norm(self.first(images))))
        images = self.back(nn.functional.pad(images, (1, 0, 0, 1)))
        images = nn.functional.max_pool2d(images, 3, 2, padding=1)
        images = nn.functional.avg_pool2d(images, 2, 1, padding=1)
        pooled = self.drop(self.frozen(images.mean((2, 3))))
        result: torch.Tensor = self.again(torch.tanh(self.last(pooled)))
        return result


@pytest.mark.slow
def test_a_network_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hit = outputs.gather(1, labels[:, None]).squeeze(1)
        return nn.functional.softplus(-hit) + 0.1 * outputs.square().mean(1)

    model = meta_model(Mixed(), (2, 9, 10), 3, Adaptation(0.05), loss=loss)
    check(model, tmp_path / "model.onnx")


def test_what_may_be_given(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp"), (4,), 3, Adaptation(0.1))
    export_onnx(model, tmp_path / "model.onnx", adaptable=True)
    session = opened(tmp_path / "model.onnx")
    inputs, labels = samples(model, 9)
    # A sample that the mask leaves out does not count, but is answered.
    mask = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0], np.float32)
    found, logits = stepped(session, inputs, labels, 1, mask=mask)
    wanted, _ = stepped(session, inputs[:5], labels[:5], 1)
    assert farthest(found, wanted) < 1e-7
    assert farthest(found, stepped(session, inputs, labels, 1)[0]) > 1e-4
    assert len(logits) == 9
    # Another step size.
    unmoved, _ = stepped(session, inputs, labels, 1, step_size=np.array(0.0, np.float32))
    own = {f"theta/{name}": leaf.numpy() for name, leaf in model.theta.items()}
    assert farthest(unmoved, own) == 0
    larger = replace(model, adaptation=replace(model.adaptation, step_size=0.7))
    found, _ = stepped(session, inputs, labels, 1, step_size=np.array(0.7, np.float32))
    assert farthest(found, adapted(larger, inputs, labels, 1)) <= PARITY


def test_inference(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("cnn", channels=(4,)), (1, 16, 17), 3, Adaptation(0.1))
    inputs, labels = samples(model, 6)
    mine = model.adapt(inputs, np.array(model.task.class_names)[labels])
    for number, each in enumerate((model, mine)):
        path = tmp_path / f"{number}.onnx"
        export_onnx(each, path, adaptable=False)
        session = opened(path)
        assert [i.name for i in session.get_inputs()] == ["inputs"]
        assert not session.get_overridable_initializers()
        for count in (1, 7):
            more, _ = samples(model, count)
            (found,) = session.run(None, {"inputs": more})
            assert np.abs(found - answers(each, more)).max() <= PARITY


def test_leads_of_maxima() -> None:
    model = meta_model(ModelSettings("cnn", channels=(4,)), (1, 16, 16), 3, Adaptation(0.1))
    inputs, labels = samples(model, 3)
    lead = closest_call(model, inputs, labels, 1)
    assert 1e-9 < lead < 1e-1
    assert closest_call(model, *samples(model, 3, constant=True), 1) < 1e-6
    assert closest_call(model, inputs, labels, 2) <= lead


@pytest.mark.slow
def test_double_precision_models_become_single(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp"), (4,), 3, Adaptation(0.1))
    export_onnx(doubled(model), tmp_path / "model.onnx", adaptable=True)
    inputs, labels = samples(model, 6)
    found, _ = stepped(opened(tmp_path / "model.onnx"), inputs, labels, 5)
    assert farthest(found, adapted(model, inputs, labels, 5)) <= PARITY
