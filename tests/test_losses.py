from __future__ import annotations

import math

import pytest
import torch

from fedmeta.core.errors import SettingError
from fedmeta.data import Task
from fedmeta.models.losses import check_loss, cross_entropy, named_loss, squared_error
from problems import double, softmax_regression

CLASSES, VALUES = Task("classification", 2, ("a", "b")), Task("regression", 2)


def test_cross_entropy_by_hand() -> None:
    outputs = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    losses = cross_entropy(outputs, torch.tensor([1, 0]))
    assert losses.tolist() == pytest.approx([math.log(2), math.log(4 / 3)])


def test_squared_error_by_hand() -> None:
    losses = squared_error(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0]] * 2))
    assert losses.tolist() == [2.5, 0]


def test_names() -> None:
    assert named_loss("auto", CLASSES) is named_loss("cross-entropy", CLASSES) is cross_entropy
    assert named_loss("auto", VALUES) is named_loss("squared-error", VALUES) is squared_error
    assert named_loss("fedmeta.models.losses:squared_error", CLASSES) is squared_error


def test_unknown_and_unfit_names() -> None:
    with pytest.raises(SettingError, match="did you mean 'cross-entropy'"):
        named_loss("crossentropy", CLASSES)
    with pytest.raises(SettingError, match="math:pi is a float"):
        named_loss("math:pi", CLASSES)
    with pytest.raises(SettingError, match="does not fit a regression task"):
        named_loss("cross-entropy", VALUES)
    with pytest.raises(SettingError, match="does not fit a classification task"):
        named_loss("squared-error", CLASSES)


def test_a_loss_is_tried_before_training() -> None:
    model = double(softmax_regression(3, 2))
    inputs, labels = torch.ones(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    check_loss(cross_entropy, model, inputs, labels)
    with pytest.raises(SettingError, match=r"returns shape \(\) for 4 samples: .* per sample"):
        check_loss(torch.nn.functional.cross_entropy, model, inputs, labels)
    with pytest.raises(SettingError, match=r"fails on outputs of shape \(4, 2\) .*RuntimeError"):
        check_loss(squared_error, model, inputs, labels)
