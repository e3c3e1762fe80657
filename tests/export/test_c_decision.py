"""PyTorch, ONNX and C decide alike, on a thousand random support sets among others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedmeta_edge
from export.c_device import CHECKED, FAST, Array, Script, apart, built, moving, needs_gcc
from export.exporting import answers, meta_model, samples
from fedmeta import Adaptation, MetaModel, ModelSettings
from fedmeta.core.decision import CANDIDATES, decide
from fedmeta.core.objective import Objective
from fedmeta.core.sample_sets import Samples
from fedmeta.export import export_onnx
from fedmeta.export.c import export_c
from fedmeta.models.losses import Balanced

pytestmark = needs_gcc


def support_sets() -> Iterator[tuple[Array, Array]]:
    """Fifty sets of every size from 1 to 20, of 1 to 3 classes that lie more or less apart."""
    for count in range(1, 21):
        rng = np.random.default_rng(count)
        labels = rng.integers(rng.integers(1, 4, size=(50, 1)), size=(50, count))
        middles = rng.normal(size=(50, 3, 4)) * rng.choice([0.3, 1.0, 3.0], size=(50, 1, 1))
        inputs = middles[np.arange(50)[:, None], labels] + rng.normal(size=(50, count, 4))
        yield inputs.astype(np.float32), labels


@pytest.mark.slow
def test_a_thousand_support_sets_decide_alike(tmp_path: Path) -> None:
    given = meta_model(ModelSettings("mlp", hidden=(6,)), (4,), 3, Adaptation(0.5, scope="head"))
    objective = Objective(lambda theta, x, _key: given.network(theta, x), given.loss)

    def choice(inputs: Tensor, labels: Tensor) -> Tensor:
        support = Samples(inputs, labels, torch.ones(len(labels)))
        return decide(objective, given.adaptation, given.theta, support).choice

    export_c(given, tmp_path, samples=20)
    export_onnx(given, tmp_path / "model.onnx", adaptable=True)
    edge, wanted = fedmeta_edge.load(tmp_path / "model.onnx"), []
    script = Script(given, len(moving(given)))
    by_edge = []
    for inputs, labels in support_sets():
        scaled = given.scaled(inputs.reshape(-1, 4)).reshape(inputs.shape)
        with torch.no_grad():
            wanted += torch.func.vmap(choice)(scaled, torch.from_numpy(labels)).tolist()
        for x, y in zip(inputs, labels, strict=True):
            by_edge.append(fedmeta_edge.adapt_if_it_helps(edge, x, y)[1].choice)
            script.begin()
            for each, label in zip(x, y, strict=True):
                script.add(each, label)
            script.decide()
    found = script.run(built(tmp_path, given, FAST), tmp_path)
    by_c = [each[1] for each in found if isinstance(each, tuple)]
    assert by_c == by_edge == [CANDIDATES[place] for place in wanted]
    assert len(by_c) == 1000
    assert {*Counter(by_c)} == {*CANDIDATES}


def compare(model: MetaModel, folder: Path, cases: list[tuple[Array, Array]]) -> list[str]:
    """Choices, losses and weights of C, each compared with PyTorch's."""
    export_c(model, folder, samples=max(len(labels) for _, labels in cases))
    script = Script(model, len(moving(model)))
    for inputs, labels in cases:
        script.begin()
        for each, label in zip(inputs, labels, strict=True):
            script.add(each, label)
        script.decide()
        script.save()
    found = script.run(built(folder, model, CHECKED), folder)
    choices = []
    for inputs, labels in cases:
        assert found[: len(labels)] == [0] * len(labels)
        (status, choice, counted, losses), weights = found[len(labels) : len(labels) + 2]
        found = found[len(labels) + 2 :]
        classes = model.task.class_names
        wanted = model.adapt(inputs, np.array(classes)[labels] if classes else labels, decide=True)
        about = wanted.about["decision"]
        assert (status, choice, counted) == (0, about["choice"], about["counted"])
        for name, loss in zip(CANDIDATES, losses.tolist(), strict=True):
            if about["losses"].get(name) is None:
                assert np.isnan(loss)
            else:
                assert loss == pytest.approx(about["losses"][name], rel=1e-3, abs=1e-6)
        assert apart(weights, moving(model, dict(wanted.theta))) <= 2e-5
        choices.append(choice)
    return choices


def cases(model: MetaModel) -> list[tuple[Array, Array]]:
    """Labels at random, those that the model thinks least of, two classes, its own, one class."""
    inputs, labels = samples(model, 40)
    logits = answers(model, inputs)
    kinds = (labels, logits.argmin(axis=1), labels % 2, logits.argmax(axis=1), labels * 0)
    return [(inputs[:n], each[:n]) for n in (1, 2, 5, 12, 40) for each in kinds]


@pytest.mark.parametrize(
    "rule",
    [
        Adaptation(0.3, scope="head"),
        Adaptation(0.1, scope="head", steps=3, pull=0.5, learned="tensor"),
        Adaptation(0.3, scope="head", steps=0),
        Adaptation(4.0, scope="head", method="prototypes"),
        Adaptation(4.0, scope="head", method="head+prototypes"),
    ],
    ids=["one step", "three with a pull", "none", "prototypes", "head+prototypes"],
)
def test_decisions_by_what_a_model_was_trained_for(rule: Adaptation, tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp"), (1, 8, 8), 5, rule)
    assert len({*compare(model, tmp_path, cases(model))}) > 1


def test_decisions_with_weighted_classes(tmp_path: Path) -> None:
    loss = Balanced((0.4, 2.8, 11.0))
    model = meta_model(ModelSettings("linear"), (4,), 3, Adaptation(0.1, scope="head"), loss=loss)
    assert len({*compare(model, tmp_path, cases(model))}) > 1


def test_decisions_on_values(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp"), (2,), 2, Adaptation(0.1, scope="head"), "regression")
    inputs, labels = samples(model, 30)
    easy = answers(model, inputs) + 3.0  # steps move the bias towards it
    zeros = np.zeros((2, 2), np.float32)
    level = answers(model, zeros) + np.array([[10.0], [-10.0]])  # the other gets worse
    given = [(inputs[:n], labels[:n]) for n in (1, 2, 5, 30)]
    given += [(inputs, easy.astype("f4")), (zeros, level.astype("f4"))]
    assert len({*compare(model, tmp_path, given)}) > 1
