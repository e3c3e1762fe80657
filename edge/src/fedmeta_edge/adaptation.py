"""Adapting a model to a device's own samples: k runs of its graph."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedmeta_edge.batches import batch_mask
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.model import Array, Model, Weights


@dataclass(frozen=True, eq=False)
class Adapted:
    """What came of an adaptation.

    Args:
        weights: to predict with.
        steps: how many were taken; 0 where the meta-model stays.
        seconds: per step.
    """

    weights: Weights
    steps: int
    seconds: float


def adapt(
    model: Model,
    inputs: Array,
    labels: Array,
    steps: int | None = None,
    seed: int = 0,
    step_size: float | None = None,
    *,
    present: npt.NDArray[np.bool_] | None = None,
    finite: bool = True,
) -> Adapted:
    """The weights after a few gradient steps on labelled samples.

    Args:
        model: from `load`.
        inputs: raw samples, (n, *input_shape), at least one.
        labels: (n,) class numbers, or (n, outputs) values; `read_samples` gives them.
        steps: how many; None: as many as the model was trained for.
        seed: of mini-batches, where the model adapts with any.
        step_size: α; None: the one that the model was trained with.
        present: which samples to look at; None: all.
        finite: refuse weights that are not.
    """
    model.check_adaptable()
    steps = model.steps if steps is None else steps
    size = model.step_size if step_size is None else step_size
    if size is None or not 0 < size < math.inf:
        raise EdgeError(f"the step size is {size}", "give a number above 0")
    if steps < 0:
        raise EdgeError(f"steps is {steps}", "give a whole number of at least 0")
    if len(inputs) == 0 or len(inputs) != len(labels):
        raise EdgeError(
            f"there are {len(inputs)} samples and {len(labels)} labels to adapt to",
            "give at least one sample, and one label for each",
        )
    inputs = model.body_features(inputs)  # once, whatever the steps
    weights = _unmoved(model, inputs, labels)
    started = time.perf_counter()
    for step in range(steps):
        mask = batch_mask(len(inputs), model.batch_size, seed, step, present)
        weights = model.step(inputs, labels, mask, weights, step_size)
    seconds = (time.perf_counter() - started) / max(1, steps)
    found = Adapted(weights, steps, seconds)
    if finite:
        check_finite(found)
    return found


def check_finite(adapted: Adapted) -> None:
    """Refuse weights that steps have blown up."""
    if not all(np.isfinite(value).all() for value in adapted.weights.values()):
        raise EdgeError(
            f"after {adapted.steps} steps the weights are no longer finite",
            "take fewer or smaller steps, or check the samples",
        )


def _unmoved(model: Model, inputs: Array, labels: Array) -> Weights:
    """The meta-model's own weights: a step of size 0."""
    one = np.ones(1, np.float32)
    return model.step(inputs[:1], labels[:1], one, step_size=0.0)
