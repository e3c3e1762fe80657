"""Inputs that are made from a model, where the platform has no data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import SettingError
from fedmeta.data import load
from fedmeta.models.functional import functionalise
from fedmeta.models.meta_model import MetaModel
from fedmeta.priors import PriorSettings, TeacherKL
from fedmeta.priors.generated import COUNT, generated_inputs, raw_generated
from fedmeta.training.teaching import FILE
from fedmeta.training.train import RunRequest, train_run
from prior.conftest import CLASSES, task_table, trained
from prior.test_teacher import _CutError, same

PRIOR = {"model": "early", "data": "generated"}


def test_inputs_are_of_the_classes_asked_for_and_fixed_by_the_seed(tasks: Path) -> None:
    model = MetaModel.load("early")
    made = generated_inputs(model.network, model.theta, model.input_shape, (0, 1), 10, seed=3)
    assert made.shape == (10, 3)
    assert model.network(model.theta, made).argmax(dim=1).tolist() == [0, 1] * 5
    again = generated_inputs(model.network, model.theta, model.input_shape, (0, 1), 10, seed=3)
    other = generated_inputs(model.network, model.theta, model.input_shape, (0, 1), 10, seed=4)
    assert torch.equal(made, again)
    assert not torch.equal(made, other)
    assert not made.requires_grad


def test_neighbouring_pixels_of_images_are_alike() -> None:
    """What the model does not look at becomes smooth."""
    network = functionalise(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    theta = {name: torch.zeros_like(leaf) for name, leaf in network.theta.items()}
    made = generated_inputs(network, theta, (1, 6, 6), (0, 1), 20)
    assert float(made.diff(dim=-1).square().mean()) < 0.5 * 2  # of noise it is 2


def test_raw_inputs_are_scaled_back_to_what_the_model_was_shown(tasks: Path) -> None:
    model = MetaModel.load("early")
    classes = range(len(CLASSES))
    made = generated_inputs(model.network, model.theta, model.input_shape, classes)
    raw = raw_generated(model)
    assert raw.shape == (COUNT, 3)
    assert torch.allclose(model.scaled(raw), made, atol=1e-5)


def test_a_run_is_held_near_to_what_the_prior_model_says_of_them(tasks: Path) -> None:
    longer = {"init": "early", "training": {"rounds": 20}}
    free, held = trained(**longer), trained(**longer, prior={**PRIOR, "strength": 30.0})
    assert held.summary["settings"]["prior"]["kind"] == TeacherKL.__name__
    early = MetaModel.load("early")
    made = raw_generated(early)
    said = early.predict(made)
    gaps = [float((run.meta_model.predict(made) - said).abs().mean()) for run in (free, held)]
    assert gaps[1] < 0.5 * gaps[0]


def test_a_killed_run_makes_the_same_inputs(tasks: Path, tmp_path: Path) -> None:
    whole = trained(prior=PRIOR)
    spec = RunSpec.from_dict(task_table("later", prior=PRIOR))
    cut = RunRequest(spec, load(spec.data_settings, 0), folder=tmp_path / "cut")

    def kill(record: Any, *_: Any) -> None:
        if record["round"] == 3:
            raise _CutError

    with pytest.raises(_CutError):
        train_run(cut, [kill])
    (tmp_path / "cut" / FILE).unlink()  # nothing is remembered
    assert same(train_run(cut, resume=True).meta_model.theta, whole.meta_model.theta)


def test_of_a_teacher_that_is_only_asked_nothing_can_be_generated() -> None:
    with pytest.raises(SettingError, match="a teacher that is only asked has no gradients"):
        PriorSettings("teacher.py:load", data="generated")
