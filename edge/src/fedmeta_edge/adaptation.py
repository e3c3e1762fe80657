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

HELD_OUT = 1 / 3
"""The share of the samples that judges whether adapting helps."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """What came of an adaptation.

    Args:
        weights: to predict with.
        steps: how many were taken; 0 where the meta-model stays.
        seconds: per step.
        losses: on the held-out samples without and with adaptation, where it was judged.
    """

    weights: Weights
    steps: int
    seconds: float
    losses: tuple[float, float] | None = None


def adapt(
    model: Model,
    inputs: Array,
    labels: Array,
    steps: int | None = None,
    seed: int = 0,
    step_size: float | None = None,
) -> Adapted:
    """The weights after a few gradient steps on labelled samples.

    Args:
        model: from `load`.
        inputs: raw samples, (n, *input_shape), at least one.
        labels: (n,) class numbers, or (n, outputs) values; `read_samples` gives them.
        steps: how many; None: as many as the model was trained for.
        seed: of mini-batches, where the model adapts with any.
        step_size: α; None: the one that the model was trained with.
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
    weights = _unmoved(model, inputs, labels)
    started = time.perf_counter()
    for step in range(steps):
        mask = batch_mask(len(inputs), model.batch_size, seed, step)
        weights = model.step(inputs, labels, mask, weights, step_size)
    seconds = (time.perf_counter() - started) / max(1, steps)
    if not all(np.isfinite(value).all() for value in weights.values()):
        raise EdgeError(
            f"after {steps} steps of size {size:g} the weights are no longer finite",
            "take fewer or smaller steps, or check the samples",
        )
    return Adapted(weights, steps, seconds)


def adapt_if_it_helps(
    model: Model,
    inputs: Array,
    labels: Array,
    steps: int | None = None,
    seed: int = 0,
    step_size: float | None = None,
) -> Adapted:
    """The same if it lowers the loss on held-out samples; else the meta-model stays.

    A third of the samples judges the model that the others adapt. If it is the better one, all
    samples adapt.

    Args:
        model, inputs, labels, steps, step_size: see `adapt`; at least two samples.
        seed: of the split and of mini-batches.
    """
    if len(inputs) < 2:
        raise EdgeError(
            f"{len(inputs)} sample cannot both adapt and judge", "give at least two samples"
        )
    judge = _held_out(model, np.asarray(labels), seed)
    trial = adapt(model, inputs[~judge], labels[~judge], steps, seed, step_size)
    losses = (
        loss(model, inputs[judge], labels[judge], None),
        loss(model, inputs[judge], labels[judge], trial.weights),
    )
    if not losses[1] < losses[0]:
        return Adapted(_unmoved(model, inputs, labels), 0, trial.seconds, losses)
    whole = adapt(model, inputs, labels, steps, seed, step_size)
    return Adapted(whole.weights, whole.steps, whole.seconds, losses)


def loss(model: Model, inputs: Array, labels: Array, weights: Weights | None) -> float:
    """Mean cross-entropy, or mean squared error, of a model on labelled samples."""
    logits = model.logits(inputs, weights).astype(np.float64)
    if not model.classes:
        return float(np.square(logits - labels).mean())
    shifted = logits - logits.max(axis=1, keepdims=True)
    norms = np.log(np.exp(shifted).sum(axis=1))
    return float((norms - shifted[np.arange(len(labels)), labels]).mean())


def _unmoved(model: Model, inputs: Array, labels: Array) -> Weights:
    """The meta-model's own weights: a step of size 0."""
    one = np.ones(1, np.float32)
    return model.step(inputs[:1], labels[:1], one, step_size=0.0)


def _held_out(model: Model, labels: Array, seed: int) -> npt.NDArray[np.bool_]:
    """Which samples judge: a third of them, while every class keeps one to adapt with."""
    rng = np.random.default_rng(seed)
    groups = labels if model.classes else np.zeros(len(labels), np.int64)
    order = rng.permutation(len(labels))
    rank = np.zeros(len(labels), np.int64)
    for group in np.unique(groups):
        mine = order[groups[order] == group]
        rank[mine] = np.arange(len(mine))
    wanted = max(1, round(HELD_OUT * len(labels)))
    candidates = order[np.argsort(rank[order], kind="stable")]
    keeps = [place for place in candidates if rank[place] > 0][:wanted]
    judge = np.zeros(len(labels), np.bool_)
    judge[keeps or candidates[:wanted]] = True
    return judge
