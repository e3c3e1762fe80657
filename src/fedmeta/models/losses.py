"""Losses, one number per sample: built in by name, or any callable (outputs, labels) → losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from fedmeta.core.errors import SettingError, nearest, require
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


BALANCED = "balanced-cross-entropy"
_MOST = 20.0  # largest weight of a class: a handful of samples shall not make every step


@dataclass(frozen=True)
class Balanced:
    """Cross-entropy in which every class counts alike, however many samples it has.

        ℓ(x, c) = −w_c log softmax(x)[c],   w_c = min(n / (C n_c), 20)

    n_c samples of class c among the n of all source nodes, C classes of which there are any. The
    mean weight of those samples is 1 where no weight is cut off.

    Args:
        weights: w_c of every class.

    Example:
        >>> loss = Balanced.of([6, 2, 0])
        >>> [round(weight, 3) for weight in loss.weights]
        [0.667, 2.0, 1.0]
        >>> round(float(loss(torch.zeros(1, 3), torch.tensor([1]))), 3)  # 2 log 3
        2.197
    """

    weights: tuple[float, ...]
    _table: Tensor = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        positive = len(self.weights) > 0 and all(0 < each <= _MOST for each in self.weights)
        require(positive, "class weights", self.weights, f"numbers above 0 and at most {_MOST:g}")
        object.__setattr__(self, "_table", torch.tensor(self.weights, dtype=torch.float64))

    @classmethod
    def of(cls, counts: Sequence[int]) -> Balanced:
        """That of source nodes with so many samples of every class.

        A class that none of them has weighs 1, for targets that have it.
        """
        total, present = sum(counts), sum(count > 0 for count in counts)
        return cls(
            tuple(min(total / (present * n), _MOST) if n > 0 else 1.0 for n in map(int, counts))
        )

    def on(self, device: torch.device, dtype: torch.dtype) -> Balanced:
        """The same with its weights where outputs will be: recorded rounds copy nothing there."""
        there = replace(self)
        object.__setattr__(there, "_table", there._table.to(device, dtype))
        return there

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """ℓ of every sample."""
        return cross_entropy(outputs, labels) * self.per_sample(outputs, labels)

    def per_sample(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """w_c of every sample, in the type of the outputs."""
        return self._table.to(outputs)[labels]


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


def named_loss(name: str, task: Task, class_counts: Sequence[int] | None = None) -> Loss:
    """The loss of that name; "auto" takes the task's usual one.

    Args:
        name: built in, or "file.py:function".
        task: what outputs and labels mean.
        class_counts: how many samples of every class the source nodes have, for a loss that
            balances them; None: nobody knows.

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
    if name not in (*_LOSSES, BALANCED):
        raise SettingError(f"loss {name!r} is unknown", nearest(name, [*_LOSSES, BALANCED, "auto"]))
    if (name == "squared-error") != (task.kind == "regression"):
        raise SettingError(
            f"loss {name!r} does not fit a {task.kind} task", 'use loss "auto" or change the task'
        )
    if name != BALANCED:
        return _LOSSES[name]
    if class_counts is None:
        raise SettingError(
            f"loss {name!r} needs the class counts of the source nodes",
            "train with it; a model that was has its weights, and --loss is left out",
        )
    return Balanced.of(class_counts)
