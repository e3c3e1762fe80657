"""Classes of unequal size: a loss in which each counts alike, and a note where one explains all."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta import FedMeta, MetaModel, ModelSettings, PlatformOptimizer, Run, train
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.data import Federation, Node, Task
from fedmeta.evaluation.majority import Majority, majority, majority_note
from fedmeta.fleet.plan import check_fleet
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.losses import BALANCED, Balanced, cross_entropy, named_loss
from fedmeta.training.many import why_apart
from problems import classification, job_of

CLASSES = Task("classification", 3, ("often", "seldom", "rarely"))


def test_weights_by_hand() -> None:
    # n = 100, C = 3: 100/(3·85), 100/(3·12), 100/(3·3)
    assert Balanced.of([85, 12, 3]).weights == pytest.approx((0.39215686, 2.77777778, 11.1111111))
    assert Balanced.of([6, 2, 0]).weights == pytest.approx((8 / 12, 2.0, 1.0))
    assert Balanced.of([999, 1]).weights == pytest.approx((1000 / 1998, 20.0))  # 500 is cut off
    with pytest.raises(SettingError, match="class weights"):
        Balanced((1.0, 0.0))


def test_values_by_hand() -> None:
    loss = Balanced((0.5, 3.0))
    outputs = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    values = loss(outputs, torch.tensor([1, 0]))
    assert values.tolist() == pytest.approx([3 * math.log(2), 0.5 * math.log(4 / 3)])


def test_every_class_counts_alike() -> None:
    counts = [85, 12, 3]
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    losses = Balanced.of(counts)(torch.zeros(100, 3, dtype=torch.float64), labels)
    sums = [float(losses[labels == c].sum()) for c in range(3)]
    assert sums == pytest.approx([100 / 3 * math.log(3)] * 3)


def test_it_runs_for_many_nodes_at_once() -> None:
    loss = Balanced.of([3, 1]).on(torch.device("cpu"), torch.float32)
    outputs, labels = torch.randn(4, 5, 2), torch.randint(2, (4, 5))
    both = torch.func.vmap(loss)(outputs, labels)
    each = torch.stack([loss(o, label) for o, label in zip(outputs, labels, strict=True)])
    assert torch.allclose(both, each)
    assert loss == Balanced.of([3, 1])  # wherever its weights lie


def test_by_name() -> None:
    assert named_loss(BALANCED, CLASSES, [1, 1, 2]) == Balanced((4 / 3, 4 / 3, 2 / 3))
    with pytest.raises(SettingError, match="needs the class counts"):
        named_loss(BALANCED, CLASSES)
    with pytest.raises(SettingError, match="does not fit a regression task"):
        named_loss(BALANCED, Task("regression", 1), ())


def test_a_fleet_refuses_it() -> None:
    spec = RunSpec.from_dict({"loss": BALANCED})
    with pytest.raises(SettingError, match="counts the classes of all source nodes"):
        check_fleet(FleetSettings(), spec)


def test_runs_with_other_weights_are_trained_apart() -> None:
    def job(seed: int) -> Any:
        settings = ModelSettings("linear")
        return job_of(classification(seed=seed), settings, FedMeta(), loss=BALANCED)

    one, other = job(0), job(1)
    assert one.loss != other.loss
    assert why_apart([one, replace(other, layout=one.layout)]) == (
        "their classes have different weights"
    )
    assert why_apart([one, job(0)]) is None


def imbalanced(nodes: int = 24, samples: int = 40) -> Federation:
    """85, 12 and 3 % of three overlapping classes on every node, in expectation."""
    rng = np.random.default_rng(0)
    count = nodes * samples
    labels = rng.choice(3, size=count, p=[0.85, 0.12, 0.03])
    centres = np.array([[0.0, 0.0], [1.6, 0.0], [0.0, 1.6]])
    inputs = centres[labels] + rng.normal(size=(count, 2))
    rows = np.arange(count).reshape(nodes, samples)
    held = [
        Node(f"n{i}", "source" if i < 16 else "target", each[: samples // 2], each[samples // 2 :])
        for i, each in enumerate(rows)
    ]
    return Federation(inputs, labels, CLASSES, held)


def learned(loss: str, rounds: int = 60, **more: Any) -> Run:
    algorithm = FedMeta(Adaptation(step_size=0.05), server=PlatformOptimizer("plain", 0.5))
    return train(imbalanced(), ModelSettings("linear"), algorithm, rounds=rounds, loss=loss, **more)


def balanced_accuracy(run: Run) -> float:
    """Mean over classes of the share that is found, over all targets after one step."""
    data, right = imbalanced(), np.zeros((3, 2))
    for node in data.targets:
        names = [CLASSES.class_names[each] for each in data.labels[node.support]]
        model = run.meta_model.adapt(data.inputs[node.support], names)
        found = model.predict(data.inputs[node.query]).argmax(1).numpy()
        for label, answer in zip(data.labels[node.query], found, strict=True):
            right[label] += [label == answer, 1]
    return float((right[:, 0] / right[:, 1]).mean())


def test_classes_that_are_seldom_are_found() -> None:
    plain, balanced = learned("cross-entropy"), learned(BALANCED)
    assert balanced_accuracy(balanced) > balanced_accuracy(plain) + 0.1
    assert balanced_accuracy(balanced) > 1 / 3 + 0.2


def test_the_weights_travel_with_the_model(tmp_path: Path) -> None:
    run = learned(BALANCED, 1, folder=tmp_path / "run")
    read = MetaModel.load(tmp_path / "run")
    expected = Balanced.of(imbalanced().class_counts)
    assert read.loss == expected == run.meta_model.loss
    inputs, labels = np.ones((2, 2)), ["often", "rarely"]
    assert torch.equal(
        read.adapt(inputs, labels).theta["1.weight"],
        run.meta_model.adapt(inputs, labels).theta["1.weight"],
    )
    plain = replace(read, loss=cross_entropy).adapt(inputs, labels)
    assert not torch.equal(plain.theta["1.weight"], read.adapt(inputs, labels).theta["1.weight"])


def test_the_majority_by_hand() -> None:
    rows = np.split(np.arange(12), 6)
    nodes = [
        Node("a", "source", rows[0], rows[1]),
        Node("b", "target", rows[2], rows[3]),
        Node("c", "target", rows[4], rows[5]),
    ]
    labels = np.array([0, 0, 0, 2, 1, 1, 0, 0, 1, 1, 0, 1])
    data = Federation(np.zeros((12, 1)), labels, CLASSES, nodes)
    assert data.class_counts == (3, 0, 1)
    assert majority(data) == Majority("often", 0.75, 0.75)  # 2 of 2 and 1 of 2
    assert majority(data.with_nodes(data.sources)) is None
    blank = replace(data, labels=np.where(np.arange(12) < 4, 0, labels))  # as a platform has them
    assert majority(blank) is None


def test_when_there_is_a_note() -> None:
    found = Majority("often", 0.85, 0.877)
    assert (majority_note(found, 0.877) or "").startswith(
        "the most frequent class (often) alone gives 87.7 %"
    )
    assert majority_note(found, 0.886) is not None  # within a point
    assert majority_note(found, 0.888) is None
    assert majority_note(replace(found, share=0.5), 0.2) is None
    assert majority_note(None, 0.2) is majority_note(found, None) is None


def test_a_run_says_so() -> None:
    (note,) = learned("cross-entropy", 1).summary["notes"]
    assert "most frequent class (often)" in note
    assert "balanced-cross-entropy" in note
    separable = classification([(9, 9)] * 4)
    assert train(separable, ModelSettings("linear"), FedMeta(), rounds=1).summary["notes"] == []
