"""What a model's confidence is worth: counted on source nodes, and held against target nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmeta.config.execution import Execution
from fedmeta.core.calibration import SHARE, Calibration, counts, margins
from fedmeta.core.objective import Objective, adapt
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation, Node
from fedmeta.engine.cohort import node_keys
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.machine import machine
from fedmeta.evaluation.decided import Measures, chosen_measures, measured_candidates
from fedmeta.evaluation.intervals import student_quantile
from fedmeta.evaluation.targets import JudgedSets, Targets, TargetStore
from fedmeta.models.meta_model import MetaModel


def calibrate(
    model: MetaModel,
    federation: Federation,
    execution: Execution,
    seed: int = 0,
    *,
    decides: bool = False,
) -> Calibration | None:
    """Adapt the model on the support set of every source node and count on its query set.

    Args:
        model: as it was trained.
        federation: its own; only the sources are looked at.
        execution: with its path and chunk size resolved.
        seed: of mini-batches, where the adaptation draws any.
        decides: whether nodes decide how to adapt, or all adapt as the model was trained for.

    Returns:
        Sums over nodes; None for values, which have no margins.
    """
    if model.task.kind != "classification":
        return None
    found = _after_adapting(model, federation, federation.sources, execution, seed, counts, decides)
    return Calibration.of(found.sum(dim=0).cpu(), decides=decides)


@dataclass(frozen=True)
class Abstaining:
    """What comes of leaving a share of the answers open, on samples of target nodes.

    Args:
        share: of the samples that were to be left open.
        coverage: share of them that was answered.
        accuracy: of all answers.
        answered: accuracy of those that were given.
        promised: the same two as the calibration has them; None where it was counted on nodes that
            the model was trained on, which promises nothing.
        half_width: of the 95 % interval of what was gained less what was promised, from the spread
            between nodes; the promise, of nodes like these, varies by as much per sample.
    """

    share: float
    coverage: float
    accuracy: float
    answered: float
    promised: tuple[float, float] | None
    half_width: float

    @property
    def gained(self) -> float:
        """Accuracy of the answered minus that of all."""
        return self.answered - self.accuracy

    @property
    def promised_gain(self) -> float | None:
        """The same as promised, if anything is."""
        return None if self.promised is None else self.promised[1] - self.promised[0]

    @property
    def kept(self) -> bool | None:
        """Whether what was promised was gained, no less and no more, within the interval."""
        if self.promised_gain is None:
            return None
        return abs(self.gained - self.promised_gain) <= self.half_width

    def to_dict(self) -> dict[str, float | bool | None]:
        """The numbers for a file; accuracy of the answered is None where none is."""
        known = not math.isnan(self.answered)
        promised, promised_answered = self.promised or (None, None)
        return {
            "share": self.share,
            "coverage": self.coverage,
            "accuracy": self.accuracy,
            "answered": self.answered if known else None,
            "promised": promised,
            "promised_answered": promised_answered,
            "half_width": self.half_width if known else None,
            "kept": self.kept,
        }


def abstaining(
    model: MetaModel,
    federation: Federation,
    execution: Execution,
    seed: int = 0,
    share: float = SHARE,
) -> Abstaining | None:
    """What the target nodes of a federation gain by leaving answers open.

    They adapt as the nodes did that have counted: as the model was trained for, or as they decide.

    Args:
        model: with its calibration.
        federation: of the same classes and input shape; only its targets are looked at.
        execution, seed: see `calibrate`.
        share: of samples to leave open.

    Returns:
        None where the model has no calibration.
    """
    if model.calibration is None:
        return None
    least = model.calibration.threshold(share)

    def count(outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        real = mask > 0
        right = real & (outputs.argmax(dim=-1) == labels)
        sure = margins(outputs) >= least
        return torch.stack([real, right, real & sure, right & sure]).sum(dim=-1)

    decides = model.calibration.decides
    found = _after_adapting(model, federation, federation.targets, execution, seed, count, decides)
    return _summary(model.calibration, share, found.double().cpu())


def _summary(calibration: Calibration, share: float, nodes: Tensor) -> Abstaining:
    """From how many samples every node has, has right, answered, and answered rightly: (n, 4)."""
    total, right, answered, both = nodes.sum(dim=0).tolist()
    accuracy = right / total
    of_answered = both / answered if answered else math.nan
    # The difference of two ratios of sums over nodes, to first order a mean over nodes.
    part = (nodes[:, 3] - of_answered * nodes[:, 2]) / max(answered, 1)
    whole = (nodes[:, 1] - accuracy * nodes[:, 0]) / total
    many = len(nodes)
    spread = float((part - whole).square().sum()) * many / max(1, many - 1)
    t = student_quantile(max(1, many - 1))
    width = t * math.sqrt(spread * (1 + total / max(1, calibration.samples)))
    promised = calibration.promised(share) if calibration.folds else None
    return Abstaining(share, answered / total, accuracy, of_answered, promised, width)


Measure = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(outputs, labels, mask) of a node's query samples → numbers of one shape for all nodes."""


def _after_adapting(
    model: MetaModel,
    federation: Federation,
    nodes: Sequence[Node],
    execution: Execution,
    seed: int,
    measure: Measure,
    decides: bool,
) -> Tensor:
    """A measure of every node after its own adaptation, with a node axis in front."""
    network = model.network.to(execution.torch_device, execution.torch_dtype)
    theta = {name: leaf.to(network.theta[name]) for name, leaf in model.theta.items()}
    predict = predictor(network, execution)
    quiet = Objective(lambda point, x, _key: predict(point, x, None), model.loss)
    rule = model.adaptation.fitted(theta)

    among: tuple[str, ...] = ()

    def one(data: JudgedSets, key: Tensor) -> Tensor:
        query = data.judged[0]

        def judge(phi: Tree) -> Measures:
            found = measure(predict(phi, query.inputs, None), query.labels, query.mask)
            return [{"counts": found}]

        if among:
            chosen = chosen_measures(quiet, rule, theta, data.support, key, among, judge)
            return chosen[0]["counts"]
        return judge(adapt(quiet, rule, theta, data.support, key))[0]["counts"]

    layout = Layout(replace(execution, chunk=min(execution.chunk or 1, len(nodes))), quiet)
    keys = node_keys(nodes, seed).to(execution.torch_device)
    with machine(execution), torch.no_grad():
        store = TargetStore([Targets(federation, nodes, model.scaling, seed)], execution)
        if decides:
            among = measured_candidates(quiet, rule, theta, store.single(0).support)
        found: Tensor = layout.map(one, store, keys)
    return found
