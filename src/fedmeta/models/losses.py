"""Losses, one number per sample: built in by name, or any callable (outputs, labels) → losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedmeta.core.errors import SettingError, nearest
from fedmeta.core.user_code import explained, is_code_name, load_object
from fedmeta.data.federation import Task
from fedmeta.models.functional import FunctionalModel

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """−log softmax(outputs)[label] for every sample."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean over the outputs of (output − label)², for every sample."""
    return (outputs - labels).square().mean(dim=-1)


def check_loss(loss: Loss, model: FunctionalModel, inputs: Tensor, labels: Tensor) -> None:
    """Try a loss on a few samples: does it run, and give one number for each?"""
    with torch.no_grad():
        outputs = model(model.theta, inputs, None)
    with explained(
        f"the loss fails on outputs of shape {tuple(outputs.shape)} and labels of shape "
        f"{tuple(labels.shape)}",
        "give a function (outputs, labels) → losses that fits the task",
    ):
        shape = tuple(loss(outputs, labels.to(outputs.device)).shape)
    if shape != (len(inputs),):
        raise SettingError(
            f"the loss returns shape {shape} for {len(inputs)} samples",
            "return one number per sample (reduction='none'), not their mean",
        )


_LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared-error": squared_error}


def named_loss(name: str, task: Task) -> Loss:
    """The loss of that name; "auto" takes the task's usual one.

    Example:
        >>> named_loss("auto", Task("regression", 1)).__name__
        'squared_error'
    """
    if is_code_name(name):
        loss: Loss = load_object(name, "loss")
        if not callable(loss):
            raise SettingError(
                f"{name} is a {type(loss).__name__}", "name a function (outputs, labels) → losses"
            )
        return loss
    if name == "auto":
        return cross_entropy if task.kind == "classification" else squared_error
    if name not in _LOSSES:
        raise SettingError(f"loss {name!r} is unknown", nearest(name, [*_LOSSES, "auto"]))
    if (name == "cross-entropy") != (task.kind == "classification"):
        raise SettingError(
            f"loss {name!r} does not fit a {task.kind} task", 'use loss "auto" or change the task'
        )
    return _LOSSES[name]
