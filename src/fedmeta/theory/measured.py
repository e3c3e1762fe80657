"""The bounds of theory with what a run measures on their left sides, as printed and as derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedmeta.core import tree
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Node
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.priors import Bregman, SquaredEuclidean, SquaredMahalanobis
from fedmeta.priors.regularizer import part
from fedmeta.theory.bounds import Bound, Sizes, adaptation_bound, data_size, forgetting
from fedmeta.theory.constants import Constants, times
from fedmeta.theory.estimation import union_of
from fedmeta.theory.falling import delta
from fedmeta.theory.problem import Problem, difference_errors
from fedmeta.theory.rate import stationarity
from fedmeta.theory.replay import Look, Replay, checked, problem_of
from fedmeta.theory.verdicts import Diagnosis, Verdict, judge_bound
from fedmeta.training.job import Job

_FORMS = (False, True)  # as derived, as printed


class Judged(NamedTuple):
    """A bound, and what can be said of it."""

    bound: Bound
    verdict: Verdict


def differences(job: Job, problem: Problem, constants: Constants, seen: Replay) -> list[Judged]:
    """The error of step 3 at the meta-model, with δ of the last round; none with exact curvature.

    printed: δζβ²      derived: δζ‖r‖²/2
    """
    step = delta(checked(job), seen.rounds)
    if not step:
        return []
    errors, lengths = difference_errors(problem, seen.theta, step)
    found = []
    for printed in _FORMS:
        bounds = []
        for node, error, length in zip(constants.nodes, errors, lengths, strict=True):
            square = node.gradient**2 if printed else length**2 / 2
            name = "δζβ²" if printed else "δζ‖r‖²/2"
            terms = {name: times(step, node.hessian, square)}
            bounds.append(Bound("difference error", printed, error, terms))
        found.append(_judged(min(bounds, key=lambda bound: bound.slack), constants))
    return found


def few_samples(
    problem: Problem,
    constants: Constants,
    weights: Sequence[float],
    sizes: Sequence[Sizes],
    theta: Tree,
    epsilon: float,
) -> list[Judged]:
    """Data size: all samples of a node stand for its expected loss, as support and as query set."""
    everything = union_of(problem.data)
    expected = replace(problem, data=NodeData(everything, everything))
    left, guessed = expected.gradient_norm(theta), replace(constants, closed_form=False)
    bounds = (data_size(constants, weights, sizes, left, epsilon, printed) for printed in _FORMS)
    return [_judged(bound, guessed) for bound in bounds]


def adapted(
    job: Job,
    constants: Constants,
    weights: Sequence[float],
    sizes: Sequence[Sizes],
    target: Node,
    seen: Replay,
    epsilon: float,
) -> list[Judged]:
    """Adaptation: ‖∇F_m‖ of the target on its own few samples."""
    left = problem_of(job, [target], seen.adaptation).gradient_norm(seen.theta)
    own = Sizes(len(target.support), len(target.query))
    guessed = replace(constants, closed_form=False)
    return [
        _judged(adaptation_bound(constants, weights, sizes, own, left, epsilon, printed), guessed)
        for printed in _FORMS
    ]


def forgotten(
    prior: Any,
    constants: Constants,
    weights: Sequence[float],
    sizes: Sequence[Sizes],
    theta: Tree,
    epsilon: float,
) -> list[Judged]:
    """Forgetting: how far D_h may be from 0, by the distance and, for ‖θ − θ_p‖², by itself.

    None for divergences of functions of θ, such as outputs: they need not be convex in θ.
    """
    if not isinstance(prior, SquaredEuclidean | SquaredMahalanobis | Bregman):
        return []
    left = float(prior.value(theta)) / prior.strength
    gap = tree.subtract(part(theta, prior.prior), prior.prior)
    distance = float(tree.squared_norm(gap).sqrt())
    found = []
    for printed in _FORMS:
        pulled = forgetting(constants, weights, sizes, prior.strength, epsilon, printed)
        found.append(_judged(pulled.divergence(left, distance), constants))
        if isinstance(prior, SquaredEuclidean):
            found.append(_judged(pulled.strongly_convex(left, 2.0), constants))
    return found


def rate(
    job: Job,
    constants: Constants,
    diagnosis: Diagnosis,
    weights: Sequence[float],
    penalties: Sequence[float],
    strength: float,
    mu_r: float,
    looks: Sequence[Look],
) -> list[Judged]:
    """Stationarity: the smallest ‖∇F‖², for runs that the theorem is about with exact curvature."""
    algorithm = checked(job)
    exact = algorithm.curvature == "exact" and algorithm.platform == "linearised"
    bounded_below = job.loss in (cross_entropy, squared_error)
    small = any(v.status == "violated" for v in diagnosis.penalties if not v.printed)
    first = looks[0].lagrangian
    if not exact or not bounded_below or small or diagnosis.departures or first is None:
        return []
    if len(looks) < 2:
        return []
    left = min(look.gradient_norm for look in looks[1:]) ** 2
    rounds = len(looks)
    bound = stationarity(constants, weights, penalties, rounds, left, first, 0.0, strength, mu_r)
    return [_judged(bound, constants)]


def _judged(bound: Bound, constants: Constants) -> Judged:
    return Judged(bound, judge_bound(bound, constants))
