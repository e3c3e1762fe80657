"""Losses, one number per sample: built in by name, or any callable (outputs, labels) → losses."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from fedmeta.data.federation import Task
from fedmeta.errors import SettingError, nearest
from fedmeta.imports import load_object, names_code

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """−log softmax(outputs)[label] for every sample."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean over the outputs of (output − label)², for every sample."""
    return (outputs - labels).square().mean(dim=-1)


_LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared-error": squared_error}


def named_loss(name: str, task: Task) -> Loss:
    """The loss of that name; "auto" takes the task's usual one.

    Example:
        >>> named_loss("auto", Task("regression", 1)).__name__
        'squared_error'
    """
    if names_code(name):
        loss: Loss = load_object(name, "loss")
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
