"""What a run decides where nothing was asked for: from the data's shape and the network alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedmeta
from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.objective import HEAD_AND_MEANS, RECOMMENDED, Adaptation
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.federation import Federation, Task
from fedmeta.models.functional import functionalise
from fedmeta.models.head import Head, feature_size, head_of
from fedmeta.training.defaults import matched_step, with_defaults, with_inner_step
from fedmeta.training.job import prepare
from fedmeta.training.many import train_many
from fedmeta.training.train import RunRequest


def devices(shape: tuple[int, ...], kind: str, count: int = 60) -> Federation:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, count) if kind == "classification" else rng.normal(size=count)
    owners = np.arange(count) // 10
    return fedmeta.federate(rng.normal(size=(count, *shape)), labels, node=owners, task=kind)


@pytest.mark.parametrize(
    ("shape", "flip", "shift"),
    [
        ((3, 32, 32), True, 2),
        ((1, 28, 28), False, 1),
        ((3, 64, 48), True, 3),
        ((3, 8, 8), False, 0),
        ((1, 15, 40), False, 0),
        ((6, 128), False, 0),
        ((30,), False, 0),
    ],
)
def test_what_is_augmented(shape: tuple[int, ...], flip: bool, shift: int) -> None:
    found = Augmentation().resolved(shape)
    assert (found.flip, found.shift) == (flip, shift)
    asked = Augmentation(flip=not flip, shift=5, turn_classes=False)
    assert asked.resolved(shape) == asked


def test_nothing_is_changed_before_it_is_decided() -> None:
    assert not Augmentation().active
    assert Augmentation().resolved((3, 32, 32)).active
    assert not Augmentation(flip=False, shift=0).resolved((3, 32, 32)).active


def test_values_get_two_layers_and_a_longer_step() -> None:
    values = prepare(RunSpec(data=None), devices((4,), "regression"))
    classes = prepare(RunSpec(data=None), devices((4,), "classification"))
    assert values.settings["model"]["hidden"] == [64, 64]
    assert classes.settings["model"]["hidden"] == [64]
    assert values.settings["algorithm"]["server"]["longest_step"] == 0.05
    assert classes.settings["algorithm"]["server"]["longest_step"] == 0.01


def test_what_was_asked_for_stays() -> None:
    asked = RunSpec.from_dict(
        {
            "model": {"hidden": [64]},
            "inner": {"step_size": 0.3, "scope": "head"},
            "algorithms": {"admm-fedmeta": {"server": {"longest_step": 0.01}}},
            "augmentation": {"flip": False, "shift": 0},
        }
    )
    job = prepare(replace(asked, data=None), devices((3, 16, 16), "regression"))
    assert job.settings["model"]["hidden"] == [64]
    assert job.settings["algorithm"]["inner"]["step_size"] == 0.3
    assert job.settings["algorithm"]["server"]["longest_step"] == 0.01
    assert job.settings["augmentation"]["shift"] == 0


def test_the_size_of_features_by_hand() -> None:
    network = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    model, inputs = functionalise(network), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    head = head_of(model, inputs)
    # Features are (1, 0, 1) and (1, 2, 2): squared lengths 2 and 9.
    assert feature_size(model, head, inputs) == pytest.approx(5.5)
    assert feature_size(model, Head(("0.weight", "1.weight")), inputs) is None
    assert not model.inference[1]._forward_pre_hooks  # type: ignore[index]


@pytest.mark.parametrize(
    ("size", "kind", "step"),
    [
        (16.0, "classification", 0.3),
        (9_999.0, "classification", 0.04),  # at most 400 / (1 + size)
        (0.25, "classification", 1.6),  # at least 2 / (1 + size)
        (None, "classification", 0.3),
        (4.0, "regression", 0.05),  # 0.25 / (1 + size)
        (999.0, "regression", 0.00025),
    ],
)
def test_a_step_that_fits_the_features(size: float | None, kind: str, step: float) -> None:
    assert matched_step(size, Task(kind, 3)) == step  # type: ignore[arg-type]


def test_all_repeats_find_the_same_step() -> None:
    nodes = devices((4,), "regression")
    found = {
        prepare(RunSpec(data=None).replaced(seed=seed), nodes).algorithm.inner.step_size
        for seed in range(3)
    }
    assert len(found) == 1
    assert found != {RECOMMENDED.step_size}


def test_a_network_of_ones_own_with_large_features_takes_a_short_step() -> None:
    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(100.0 * x)

    job = prepare(RunSpec(data=None, model=Loud()), devices((4,), "classification"))
    # 100² · 4 features of variance 1, as far as 64 draws tell.
    assert job.algorithm.inner.step_size == pytest.approx(400 / 40_000, rel=0.3)


def test_another_inner_step_is_left_alone() -> None:
    spec = RunSpec(data=None, algorithm=ADMMFedMeta(Adaptation(0.3, scope="head")))
    nodes = devices((4,), "regression")
    spec = with_defaults(spec, nodes)
    network = functionalise(nn.Linear(4, 1))
    assert with_inner_step(spec, network, head_of(network, torch.zeros(1, 4)), nodes) is spec


def test_one_step_halves_the_error_of_waves_and_beats_each_devices_mean() -> None:
    spec = RunSpec.from_dict({"data": {"name": "sinusoid"}, "training": {"evaluate_every": 0}})
    summary = fedmeta.train_spec(spec).summary
    metric = summary["target_metric"]
    assert metric["1"]["mean"] <= metric["0"]["mean"] / 2
    assert metric["1"]["mean"] < summary["own_mean"]["mean"]


def pairs(classes: int = 6) -> Federation:
    """Devices with two classes each."""
    rng, count = np.random.default_rng(0), 12
    labels = np.concatenate([[2 * d % classes, 2 * d % classes + 1] * 5 for d in range(count)])
    owners = np.arange(len(labels)) // 10
    return fedmeta.federate(rng.normal(size=(len(labels), 4)), labels, node=owners)


def test_devices_with_few_classes_add_class_means_to_the_head() -> None:
    assert prepare(RunSpec(data=None), pairs()).algorithm.inner == HEAD_AND_MEANS
    assert prepare(RunSpec(data=None), devices((4,), "classification")).algorithm.inner.steps == 1
    all_of_two = prepare(RunSpec(data=None), pairs(classes=2)).algorithm.inner
    assert all_of_two.method == "gradient"


@pytest.mark.parametrize(
    "table",
    [
        {"inner": {"step_size": 0.3, "scope": "head"}},
        {"algorithms": {"admm-fedmeta": {"curvature": "none"}}},
        {"algorithm": "fedavg"},
    ],
)
def test_who_asks_for_gradient_steps_gets_them(table: Any) -> None:
    spec = replace(RunSpec.from_dict(table), data=None)
    assert prepare(spec, pairs()).algorithm.inner.method == "gradient"


def test_a_head_that_is_not_linear_takes_gradient_steps() -> None:
    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x)).tanh()

    inner = prepare(RunSpec(data=None, model=Cosine()), pairs()).algorithm.inner
    assert inner.method == "gradient"


def test_repeats_adapt_in_one_way() -> None:
    """Also where a seed deals few classes to its nodes and another does not."""
    settings = TrainingSettings(rounds=1, evaluate_every=0)
    spec = RunSpec(data=None, training=settings)
    few, many = pairs(), devices((4,), "classification")
    many = replace(many, task=few.task)
    both = [
        RunRequest(replace(spec, training=replace(settings, seed=s)), data)
        for s, data in enumerate((few, many))
    ]
    methods = [run.meta_model.adaptation.method for run in train_many(both)]
    assert methods == ["head+prototypes"] * 2
    methods = [run.meta_model.adaptation.method for run in train_many(both[::-1])]
    assert methods == ["gradient"] * 2
