"""Adapt only if it helps: a node's own samples decide how, and whether, it adapts.

The candidates are the meta-model as it is ("none"), a head of class means ("prototypes"), one
gradient step ("one") and several ("several": as many as in training, or 5 where that was one).
Each is judged by leaving out: every support sample is predicted by the model adapted to the
others (with more than 32 samples: to those of the other 31 of 32 parts), ℓ_a(j) for candidate a.

1. Reference is the adaptation that the model was trained for: all source nodes speak for it.
2. Another candidate takes its place if its mean loss is the lowest of all, and the differences
   d_j = ℓ_ref(j) − ℓ_a(j) of the n samples speak for it: their mean exceeds t·s/√n, with s their
   standard deviation and t the 95 % point of Student's distribution with n − 1 degrees of freedom
   (6.3 for two samples, 1.8 for a dozen). So a few noisy samples overturn nothing. A candidate
   with a loss that is not finite is out, the reference too.
3. A sample whose class has no other sample in the rest says nothing, since what remains cannot know
   that class: it is not counted. Where none counts (one sample, or one of each class), or where
   the support set has a single class (leaving out never shows what is lost on the others), the
   reference adapts, but for two signs of harm: its loss on the very samples it adapts to does not
   fall, or there is a single class and the meta-model names it for every sample already. Then
   the meta-model stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.core.errors import ModelError, SettingError, nearest
from fedmeta.core.objective import PROTOTYPES, Adaptation, Objective, adapt
from fedmeta.core.prototypes import Predict, check_linear, linear_head
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree

CANDIDATES = ("none", "prototypes", "one", "several")
FOLDS = 32
SEVERAL = 5

# 95 % points of Student's distribution with 1, 2, … degrees of freedom, the last one for all more.
_STUDENT = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771),
    *(1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706),
    *(1.703, 1.701, 1.699, 1.697, 1.645),
)


class Decision(NamedTuple):
    """What a support set says of the candidates, as tensors (with a node axis when batched).

    Args:
        choice: place of the chosen candidate.
        losses: mean loss of each candidate on samples left out; NaN where none was counted.
        counted: how many samples were.
    """

    choice: Tensor
    losses: Tensor
    counted: Tensor


def candidate_rules(
    adaptation: Adaptation, among: Sequence[str] = CANDIDATES
) -> dict[str, Adaptation]:
    """What each candidate does, by name. A model that adapts by class means takes no other steps.

    Args:
        adaptation: what the model was trained for.
        among: names of candidates, of which "none" is always one.

    Example:
        >>> {name: rule.steps for name, rule in candidate_rules(Adaptation(0.1)).items()}
        {'none': 0, 'prototypes': 1, 'one': 1, 'several': 5}
        >>> list(candidate_rules(PROTOTYPES))
        ['none', 'prototypes']
    """
    for name in among:
        if name not in CANDIDATES:
            raise SettingError(f"there is no candidate {name!r}", nearest(name, CANDIDATES))
    means = replace(
        adaptation,
        step_size=PROTOTYPES.step_size,
        steps=1,
        scope="head",
        batch_size=None,
        learned="none",
        factors=None,
        method="prototypes",
    )
    several = adaptation.steps if adaptation.steps > 1 else SEVERAL
    rules = {
        "none": replace(adaptation, steps=0),
        "prototypes": means,
        "one": replace(adaptation, steps=1),
        "several": replace(adaptation, steps=several),
    }
    if adaptation.by_means:
        rules = {"none": rules["none"], "prototypes": replace(adaptation, steps=1)}
    return {name: rule for name, rule in rules.items() if name == "none" or name in among}


def possible_candidates(
    predict: Predict, adaptation: Adaptation, theta: Tree, inputs: Tensor, labels: Tensor
) -> tuple[str, ...]:
    """The candidates that a model can take: prototypes ask for classes and a linear head.

    Args:
        predict: (θ, inputs, key) → outputs.
        adaptation: what the model was trained for.
        theta: the model.
        inputs, labels: a few samples to try it on.
    """
    rules = candidate_rules(adaptation)
    try:
        head = linear_head(theta, rules["prototypes"].moves(theta))
        check_linear(predict, theta, head, inputs)
    except ModelError:
        del rules["prototypes"]
    if labels.is_floating_point():
        rules.pop("prototypes", None)
    return tuple(rules)


def decide(
    objective: Objective,
    adaptation: Adaptation,
    theta: Tree,
    support: Samples,
    key: Tensor | None = None,
    among: Sequence[str] = CANDIDATES,
) -> Decision:
    """The place of the candidate that a node takes, among those of `candidate_rules`; see above.

    Args:
        objective: model and loss.
        adaptation: what the model was trained for.
        theta: the model.
        support: the node's labelled samples; the mask may hide some.
        key: of mini-batches, where the adaptation draws any.
        among: names of candidates.

    Example:
        >>> objective = Objective(lambda t, x, key: x * t["a"], lambda z, y: (z - y).square())
        >>> rows = torch.ones(4)
        >>> for slope in (2.0, 1.0):  # twice what the model has learned, and what it has
        ...     support = Samples(rows, slope * rows, torch.ones(4))
        ...     found = decide(objective, Adaptation(0.05), {"a": torch.tensor(1.0)}, support,
        ...         among=("one", "several"))
        ...     print(int(found.choice), found.losses)
        2 tensor([1.0000, 0.8100, 0.3487])
        1 tensor([0., 0., 0.])
    """
    rules = candidate_rules(adaptation, among)
    reference = list(rules).index(_trained_for(adaptation, rules))
    held_out, counted = _left_out(objective, rules, theta, support, key)
    number = counted.sum()
    means = torch.where(counted, held_out, 0).sum(dim=1) / number  # NaN where none is counted
    finite = (held_out.isfinite() | ~counted).all(dim=1)
    best = torch.where(finite, means, torch.inf).argmin()
    ours, theirs = held_out[reference], held_out.index_select(0, best.reshape(1))[0]
    lead = torch.where(counted, ours - theirs, 0)
    mean = lead.sum() / number
    spread = torch.where(counted, (lead - mean).square(), 0).sum()
    error = (spread / (number * (number - 1)).clamp(min=1)).sqrt()
    points = torch.tensor(_STUDENT, dtype=error.dtype, device=error.device)
    freedom = (number - 2).clamp(min=0, max=len(_STUDENT) - 1)
    better = (mean > points.gather(0, freedom.reshape(1))[0] * error) | ~finite[reference]
    by_leaving_out = torch.where(better, best, reference)
    single = _single_class(support)
    phi = adapt(objective, list(rules.values())[reference], theta, support, key)
    falls = objective.value(phi, support) < objective.value(theta, support)
    stays = (single & _right_about_all(objective, theta, support)) | ~falls
    judged = (number > 0) & ~single
    unjudged = torch.where(stays, 0, reference)
    return Decision(torch.where(judged, by_leaving_out, unjudged), means, number)


def decided(
    objective: Objective,
    adaptation: Adaptation,
    theta: Tree,
    support: Samples,
    key: Tensor | None = None,
    among: Sequence[str] | None = None,
) -> tuple[Adaptation, dict[str, Any]]:
    """What one node takes, and what to tell of the choice: its name, all losses, samples counted.

    Args:
        objective, adaptation, theta, support, key: as of `decide`.
        among: names of candidates, of which those that the model cannot take are left out; None:
            all that it can.
    """
    few = support.inputs[:4], support.labels
    known = possible_candidates(objective.predict, adaptation, theta, *few)
    rules = candidate_rules(adaptation, among or known)
    rules = {name: rule for name, rule in rules.items() if name in known}
    with torch.no_grad():
        found = decide(objective, adaptation, theta, support, key, tuple(rules))
    choice = list(rules)[int(found.choice)]
    losses = [loss if math.isfinite(loss) else None for loss in found.losses.tolist()]
    told = {"choice": choice, "losses": dict(zip(rules, losses, strict=True))}
    return rules[choice], {**told, "counted": int(found.counted)}


def _trained_for(adaptation: Adaptation, rules: dict[str, Adaptation]) -> str:
    """The candidate that is the model's own adaptation; "none" where it is not among them."""
    own = "none" if adaptation.steps == 0 else "one" if adaptation.steps == 1 else "several"
    if adaptation.by_means and adaptation.steps > 0:
        own = "prototypes"
    return own if own in rules else "none"


def _left_out(
    objective: Objective,
    rules: dict[str, Adaptation],
    theta: Tree,
    support: Samples,
    key: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Loss of every sample under every candidate adapted without it, and which samples count."""
    real = support.mask > 0
    # Of the sample's place among the real ones, so that padding moves none to another part.
    part = torch.where(real, (real.cumsum(dim=0) - 1) % FOLDS, -1)
    parts = torch.arange(min(len(support.mask), FOLDS), device=part.device)

    def losses(phi: Tree) -> Tensor:
        return objective.loss(objective.predict(phi, support.inputs, None), support.labels)

    def without(number: Tensor) -> Tensor:
        rest = support._replace(mask=torch.where(part == number, 0, support.mask))
        return torch.stack(
            [losses(adapt(objective, rule, theta, rest, key)) for rule in rules.values()]
        )

    heads = all(rule.scope == "head" or rule.steps == 0 for rule in rules.values())
    # Where only heads differ, everything before them is computed once for all parts; where all
    # layers do, one part at a time takes no more memory than an adaptation.
    found = (
        torch.func.vmap(without)(parts) if heads else torch.stack([without(each) for each in parts])
    )
    own = part.clamp(min=0).expand(1, len(rules), len(part))
    table = found.gather(0, own)[0]
    others = real & (part.unsqueeze(1) != part)
    if not support.labels.is_floating_point():
        others = others & (support.labels.unsqueeze(1) == support.labels)
    return table, real & others.any(dim=1)


def _right_about_all(objective: Objective, theta: Tree, support: Samples) -> Tensor:
    """Whether a model names the class of every sample; False for values."""
    if support.labels.is_floating_point():
        return torch.zeros((), dtype=torch.bool, device=support.mask.device)
    answers = objective.predict(theta, support.inputs, None).argmax(dim=-1)
    return ((answers == support.labels) | (support.mask == 0)).all()


def _single_class(support: Samples) -> Tensor:
    """Whether all samples are of one class; False for values."""
    if support.labels.is_floating_point():
        return torch.zeros((), dtype=torch.bool, device=support.mask.device)
    same = support.labels.unsqueeze(1) == support.labels
    both = (support.mask > 0) & (support.mask > 0).unsqueeze(1)
    return (same | ~both).all()
