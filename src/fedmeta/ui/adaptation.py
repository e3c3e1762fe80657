"""A model adapting before one's eyes: what it predicts after every single step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmeta.core import tree
from fedmeta.core.errors import require
from fedmeta.data.pool import Array
from fedmeta.evaluation.evaluate import score
from fedmeta.models.meta_model import MetaModel
from fedmeta.ui.drawable import finite

MOST_STEPS = 20
_CURVE_POINTS = 101


class Labelled(NamedTuple):
    """Samples with their labels.

    Args:
        inputs: raw, (n, *shape).
        labels: class numbers as the model counts them, or (n, outputs) values.
    """

    inputs: Array
    labels: Array


@dataclass(frozen=True)
class Step:
    """The model after a number of steps.

    Args:
        number: of steps taken; 0 is the meta-model as it arrives.
        metric: on the test samples whose label is known; None without any, or if not finite.
        predicted: class of every shown sample, or its value.
        confidence: probability of that class; empty for regression.
        curve: for one number in and one out, the outputs along `curve_inputs`; else empty.
    """

    number: int
    metric: float | None
    predicted: list[float | int | None]
    confidence: list[float | None]
    curve: list[float | None]


def adapt_stepwise(
    model: MetaModel, support: Labelled, tested: Labelled, shown: Array, steps: int
) -> tuple[list[Step], MetaModel]:
    """The model after 0, 1, …, `steps` steps, and the last of them.

    Steps are those of `MetaModel.adapt`, so the numbers are those of `fedmeta adapt`.

    Args:
        model: the meta-model.
        support: what it adapts to.
        tested: what it is measured on; may be empty.
        shown: raw samples to predict.
        steps: how many, from 0 to `MOST_STEPS`.
    """
    require(
        isinstance(steps, int) and not isinstance(steps, bool) and 0 <= steps <= MOST_STEPS,
        "steps",
        steps,
        f"a whole number from 0 to {MOST_STEPS}",
    )
    names, classes = np.array(model.task.class_names), model.task.kind == "classification"
    labels = names[support.labels] if classes else support.labels
    along = curve_inputs(model, np.concatenate([support.inputs, shown]))
    current, found = model, [_step(0, model, tested, shown, along)]
    # Mini-batches are drawn by the number of the step, a pull is to where the first step started,
    # and class means are added to a head but once: so there a stretch starts from the front.
    rule = model.adaptation
    alike = rule.batch_size is None and rule.pull == 0 and not rule.keeps_head
    for number in range(1, steps + 1):
        start, taken = (current, 1) if alike else (model, number)
        current = start.adapt(support.inputs, labels, steps=taken)
        found.append(_step(number, current, tested, shown, along))
    return found, current


def curve_inputs(model: MetaModel, inputs: Array) -> Array:
    """Where to draw the function itself, (n, 1): only if it takes a number and returns one."""
    if model.task.kind != "regression" or model.input_shape != (1,) or model.task.outputs != 1:
        return np.empty((0, 1), np.float32)
    return np.linspace(inputs.min(), inputs.max(), _CURVE_POINTS, dtype=np.float32)[:, None]


def _step(number: int, model: MetaModel, tested: Labelled, shown: Array, along: Array) -> Step:
    judged = len(tested.inputs) > 0 and tree.is_finite(model.theta)
    metric = finite(score(model, *tested)) if judged else None
    outputs = model.predict(shown).cpu().numpy() if len(shown) else np.empty((0, 1))
    curve = model.predict(along).cpu().numpy()[:, 0] if len(along) else np.empty(0)
    if model.task.kind == "classification":
        # NaN has an argmax, but no meaning.
        predicted: list[float | int | None] = [
            int(row.argmax()) if np.isfinite(row).all() else None for row in outputs
        ]
        confidence = [finite(row.max()) for row in outputs]
    else:
        predicted, confidence = [finite(row[0]) for row in outputs], []
    return Step(number, metric, predicted, confidence, [finite(value) for value in curve])
