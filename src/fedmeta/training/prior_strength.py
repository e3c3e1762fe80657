"""λ = "auto": as strong as the pull must be to cost what the new task gains by ignoring it.

Let θ_f be the end of a training without the prior. On the way from θ_p to θ_f, at the share s of
it, to second order

    F(s) = F(θ_f) + Δ (1 − s)²,     Δ = F(θ_p) − F(θ_f),  the new task's gain,
    D(s) = D(θ_f, θ_p) s²,

so F + λD is least at s = Δ / (Δ + λ D(θ_f, θ_p)). With

    λ = Δ / D(θ_f, θ_p)

it is s = ½: three quarters of the gain are kept, and of what is lost on earlier tasks, which grows
with s² too, three quarters are avoided. Only losses of source nodes are looked at, and any
divergence will do. `docs/explanation/prior.md` has the derivation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmeta.config.execution import Execution
from fedmeta.core.errors import SettingError
from fedmeta.data.federation import Federation
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.models.meta_model import MetaModel
from fedmeta.priors import Regularizer

_REMEDY = "give λ as a number, e.g. --prior-strength 0.1"


class Balance(NamedTuple):
    """The rule's result and what it was made from.

    Args:
        strength: λ = gain / distance.
        gain: Δ = F(θ_p) − F(θ_f), in units of the loss.
        distance: D(θ_f, θ_p).
    """

    strength: float
    gain: float
    distance: float


def balanced(
    prior: Regularizer, free: MetaModel, federation: Federation, execution: Execution, seed: int
) -> Balance:
    """λ = [F(θ_p) − F(θ_f)] / D(θ_f, θ_p).

    F is the loss of the source nodes on their query sets after adaptation, weighted by w_i. Of a
    prior model in part, the rest is taken from θ_f.

    Args:
        prior: D itself, with λ = 1.
        free: the meta-model after a training without the prior, θ_f.
        federation: the new task's; its source nodes are asked.
        execution: of that training.
        seed: of mini-batches, where the adaptation draws any.
    """
    tied = tied_model(prior, free)
    losses = (_loss(model, federation, execution, seed) for model in (tied, free))
    return balance(prior, free, *losses)


def tied_model(prior: Regularizer, free: MetaModel) -> MetaModel:
    """The prior model, whole: what it has not is taken from θ_f."""
    return replace(free, theta={**free.theta, **prior.fitted(free.theta).prior})


def balance(prior: Regularizer, free: MetaModel, before: float, after: float) -> Balance:
    """The rule itself.

    Args:
        prior: D, with λ = 1.
        free: θ_f.
        before: F(θ_p).
        after: F(θ_f).
    """
    gain, distance = before - after, float(prior.value(free.theta))
    if not distance > 0:
        raise SettingError(
            "λ cannot be found: without the prior, training does not leave the prior model",
            "train for more rounds, or " + _REMEDY,
        )
    if not gain > 0:
        raise SettingError(
            f"λ cannot be found: without the prior, training gains nothing on the prior model "
            f"(its loss changes by {-gain:+.3g})",
            "train for more rounds or start from the prior model with --init, or " + _REMEDY,
        )
    return Balance(gain / distance, gain, distance)


def _loss(model: MetaModel, federation: Federation, execution: Execution, seed: int) -> float:
    """F: the sources' query loss after adaptation, weighted by their numbers of samples."""
    losses = source_losses(model, federation, execution, seed)
    return float(np.average(losses, weights=[node.size for node in federation.sources]))


def source_losses(
    model: MetaModel, federation: Federation, execution: Execution, seed: int
) -> Sequence[float]:
    """The query loss of every source node after adaptation."""
    nodes = [replace(node, role="target") for node in federation.sources]
    steps = model.adaptation.steps
    found = evaluate_model(
        model, federation.with_nodes(nodes), [steps], execution=execution, seed=seed
    )
    return found.losses[steps]
