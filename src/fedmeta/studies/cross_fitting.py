r"""A calibration that holds for nodes that a model has not seen: counted by cross-fitting.

A model is surer, and more often right, on nodes that it was trained on. So the source nodes are
divided into K folds 𝓕_1 … 𝓕_K, K models are trained as the run was, θ_k on all but 𝓕_k, and every
node counts under the model that has not seen it:

    counts = Σ_k Σ_{i ∈ 𝓕_k} counts_i(θ_k adapted on the support set of i)

No target is looked at. The cost is K trainings on (K − 1)/K of the nodes: four times the run's own
for K = 5. Models of fewer nodes are a little less sure than that of all of them.

Reference: Vovk, Cross-conformal predictors, 2015.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedmeta.config.execution import Execution
from fedmeta.core.calibration import BINS, Calibration
from fedmeta.core.errors import DataError, SettingError, require
from fedmeta.core.serialization import deserialize
from fedmeta.data.federation import Federation
from fedmeta.evaluation.calibrating import calibrate
from fedmeta.training.many import train_many
from fedmeta.training.run import Run
from fedmeta.training.train import AnyCallback, RunRequest

FOLDS = 5


def folds_of(federation: Federation, folds: int, seed: int) -> Iterator[Federation]:
    """The sources alone, another fold of them playing target each time.

    Example:
        >>> from fedmeta.data import DataSettings, load
        >>> nodes = load(DataSettings("sinusoid", nodes=10), seed=0)
        >>> parts = list(folds_of(nodes, 4, seed=0))
        >>> [len(part.targets) for part in parts], len({n.name for p in parts for n in p.targets})
        ([2, 2, 2, 2], 8)
    """
    sources = federation.sources
    require(folds >= 2, "folds", folds, "a whole number of at least 2")
    if folds > len(sources):
        raise DataError(
            f"{len(sources)} source nodes cannot be divided into {folds} folds", "use fewer folds"
        )
    order = np.random.default_rng([seed, 0xF01D]).permutation(len(sources))
    for part in np.array_split(order, folds):
        held = set(part.tolist())
        yield federation.with_nodes(
            replace(node, role="target" if i in held else "source")
            for i, node in enumerate(sources)
        )


def cross_fitted(
    request: RunRequest,
    folds: int = FOLDS,
    callbacks: Sequence[AnyCallback] = (),
    *,
    decides: bool | None = None,
) -> Calibration:
    """What the source nodes count, each under a model that was trained without it.

    Args:
        request: the run, with its own nodes; it is trained anew, in memory.
        folds: K; more of them take longer, and their models are closer to that of all nodes.
        callbacks: told of every round.
        decides: whether nodes decide how to adapt; None: as `training.decide` of the run says.

    Raises:
        DivergedError: where a training does.

    Example:
        >>> import fedmeta
        >>> spec = fedmeta.RunSpec(fedmeta.DataSettings("digits", nodes=10)).replaced(rounds=1)
        >>> nodes = fedmeta.load(spec.data_settings, seed=0)
        >>> found = cross_fitted(RunRequest(spec, nodes), folds=2)
        >>> found.samples == sum(len(node.query) for node in nodes.sources)
        True
    """
    spec = replace(request.spec.replaced(evaluate_every=0), importance="none")
    if request.federation.task.kind != "classification" or spec.uplink.privacy.on:
        raise SettingError(
            "there is nothing to calibrate: values have no margins, and counts no noise",
            "calibrate a run of classes that was trained without dp",
        )
    decides = spec.training.decide if decides is None else decides
    parts = list(folds_of(request.federation, folds, spec.training.seed))
    alone = [
        replace(request, spec=spec, federation=part, folder=None, metrics=()) for part in parts
    ]
    total = torch.zeros(2, BINS, dtype=torch.int64)
    for part, outcome in zip(parts, train_many(alone, callbacks), strict=True):
        if not isinstance(outcome, Run):
            raise outcome
        held = part.with_nodes(replace(node, role="source") for node in part.targets)
        execution = deserialize(Execution, outcome.summary["settings"]["execution"], "execution")
        model, seed = outcome.meta_model, spec.training.seed
        found = calibrate(model, held, execution, seed, decides=decides)
        assert found is not None
        total += torch.tensor([found.total, found.correct])
    return Calibration.of(total, folds, decides)
