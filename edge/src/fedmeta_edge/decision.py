"""Adapt only if it helps: a device's own samples decide whether, and how.

The rule is fedmeta's own (`fedmeta.core.decision`) with its candidates: the meta-model as it is
("none"), a head of class means ("prototypes", where the graph gives one), one gradient step ("one")
and several ("several": as many as in training, or 5 where that was one). Every sample is predicted
by the model adapted to the others (beyond 32 samples: to those of the other 31 of 32 parts). What
the model was trained for stands, unless another candidate has the lowest mean loss and its lead is
sure: the 95 % point of Student's distribution.

A sample whose class the others lack is not counted. Where none counts, or all are of one class, it
adapts as it was trained for, unless its loss on these samples does not fall or all are of one class
and named rightly already.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedmeta_edge.adaptation import Adapted, adapt, check_finite
from fedmeta_edge.batches import batch_mask
from fedmeta_edge.model import Array, Model, Weights

FOLDS = 32
SEVERAL = 5

STUDENT = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771),
    *(1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706),
    *(1.703, 1.701, 1.699, 1.697, 1.645),
)
"""95 % points of Student's distribution with 1, 2, … degrees of freedom."""

Losses = npt.NDArray[np.float64]
Present = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Decision:
    """What the samples chose, and why.

    Args:
        choice: "none", "prototypes", "one" or "several".
        losses: mean loss of each candidate on samples left out; empty where none was counted.
        counted: how many samples were.
    """

    choice: str
    losses: dict[str, float]
    counted: int


def adapt_if_it_helps(
    model: Model,
    inputs: Array,
    labels: Array,
    steps: int | None = None,
    seed: int = 0,
    step_size: float | None = None,
) -> tuple[Adapted, Decision]:
    """The weights that the samples decide for, and what they decided.

    Args:
        model, inputs, labels, seed, step_size: see `adapt`.
        steps: how many the model was trained for; None: as its file says.
    """
    steps = model.steps if steps is None else steps
    inputs = model.body_features(inputs)
    start = adapt(model, inputs, labels, 0, seed, step_size)  # checks what was given

    several = steps if steps > 1 else SEVERAL

    def candidates(present: Present) -> dict[str, Weights]:
        """The weights of each after adapting to some of the samples."""
        found = {"none": start.weights}
        if model.has_prototypes:
            found["prototypes"] = model.prototypes(inputs, labels, present, start.weights)
        weights = start.weights
        for step in range(several if model.method == "gradient" else 0):
            mask = batch_mask(len(inputs), model.batch_size, seed, step, present)
            weights = model.step(inputs, labels, mask, weights, step_size)
            found["one" if step == 0 else "several"] = weights
        return found

    began = time.perf_counter()
    whole = candidates(np.ones(len(inputs), np.bool_))
    seconds = (time.perf_counter() - began) / several
    names = list(whole)
    taken_as = {0: "none", 1: "one"}.get(steps, "several")
    own = names.index(taken_as if steps == 0 or model.method == "gradient" else "prototypes")
    part = np.arange(len(inputs)) % FOLDS
    elsewhere = part[:, None] != part
    if model.classes:
        elsewhere &= labels[:, None] == labels
    counted = elsewhere.any(axis=1)
    table = np.zeros((len(names), len(inputs)))
    for number in np.unique(part[counted]):
        held = part == number
        for place, weights in enumerate(candidates(~held).values()):
            table[place, held] = model.losses(inputs[held], labels[held], weights)
    single = bool(model.classes) and len(np.unique(labels)) == 1
    if counted.any() and not single:
        choice = _by_leaving_out(table[:, counted], own)
    else:
        before, after = (
            model.losses(inputs, labels, whole[name]).mean() for name in ("none", names[own])
        )
        right = single and (model.logits(inputs).argmax(axis=1) == labels).all()
        choice = 0 if right or not after < before else own
    means = table[:, counted].mean(axis=1) if counted.any() else []
    losses = dict(zip(names, map(float, means), strict=False))
    name = names[choice]
    taken = {"none": 0, "prototypes": 1, "one": 1, "several": several}[name]
    found = Adapted(whole[name], taken, seconds)
    check_finite(found)
    return found, Decision(name, losses, int(counted.sum()))


def _by_leaving_out(losses: Losses, reference: int) -> int:
    """The place of the candidate that the counted samples speak for."""
    finite = np.asarray(np.isfinite(losses).all(axis=1))
    best = int(np.where(finite, losses.mean(axis=1), np.inf).argmin())
    if not finite[reference]:
        return best
    return best if surely_above_zero(losses[reference] - losses[best]) else reference


def surely_above_zero(leads: Losses) -> bool:
    """Whether the mean of some numbers exceeds t·s/√n, the 95 % point of Student's distribution.

    Args:
        leads: at least two: a sample counts where another of its class is there.

    Example:
        >>> surely_above_zero(np.array([1.0, 1.1, 0.9])), surely_above_zero(np.array([3.0, 0.1]))
        (True, False)
    """
    number = len(leads)
    error = np.sqrt(np.square(leads - leads.mean()).sum() / (number * (number - 1)))
    return bool(leads.mean() > STUDENT[min(number - 2, len(STUDENT) - 1)] * error)
