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
from fedmeta.theory.bounds import Bound, Forgetting, Sizes, Sources, adaptation_bound, data_size
from fedmeta.theory.constants import Constants, times
from fedmeta.theory.descent import difference_step, stationarity
from fedmeta.theory.estimation import union_of
from fedmeta.theory.penalties import Setting
from fedmeta.theory.problem import Problem, difference_errors
from fedmeta.theory.theorem_check import TheoremCheck, Verdict, check_bound
from fedmeta.theory.trajectory import Measurement, Trajectory, diagnosable, problem_of
from fedmeta.training.job import Job

_FORMS = (False, True)  # as derived, as printed


class MeasuredBound(NamedTuple):
    """A bound with its measured left side, and whether it holds."""

    bound: Bound
    verdict: Verdict


def difference_error_bounds(
    job: Job, problem: Problem, constants: Constants, trajectory: Trajectory
) -> list[MeasuredBound]:
    """The error of step 3 at the meta-model, with δ of the last round; none with exact curvature.

    printed: δζβ²      derived: δζ‖r‖²/2
    """
    step = difference_step(diagnosable(job), trajectory.rounds)
    if not step:
        return []
    errors, lengths = difference_errors(problem, trajectory.theta, step)
    found = []
    for printed in _FORMS:
        bounds = []
        for node, error, length in zip(constants.nodes, errors, lengths, strict=True):
            name, square = ("δζβ²", node.gradient**2) if printed else ("δζ‖r‖²/2", length**2 / 2)
            terms = {name: times(step, node.hessian, square)}
            bounds.append(Bound("difference error", printed, error, terms))
        worst = min(bounds, key=lambda bound: bound.slack)
        found.append(_measured(worst, constants.closed_form))
    return found


def data_size_bounds(problem: Problem, sources: Sources, theta: Tree) -> list[MeasuredBound]:
    """Data size: all samples of a node stand for its expected loss, as support and as query set."""
    everything = union_of(problem.data)
    expected = replace(problem, data=NodeData(everything, everything))
    left = expected.gradient_norm(theta)
    return [_measured(data_size(sources, left, printed), False) for printed in _FORMS]


def adaptation_bounds(
    job: Job, sources: Sources, target: Node, trajectory: Trajectory
) -> list[MeasuredBound]:
    """Adaptation: ‖∇F_m‖ of the target on its own few samples."""
    left = problem_of(job, [target], trajectory.adaptation).gradient_norm(trajectory.theta)
    own = Sizes(len(target.support), len(target.query))
    return [_measured(adaptation_bound(sources, own, left, printed), False) for printed in _FORMS]


def forgetting_bounds(prior: Any, sources: Sources, theta: Tree) -> list[MeasuredBound]:
    """Forgetting: how far D_h may be from 0, by the distance and, for ‖θ − θ_p‖², by itself.

    None for divergences of functions of θ, such as outputs: they need not be convex in θ.
    """
    if not isinstance(prior, SquaredEuclidean | SquaredMahalanobis | Bregman):
        return []
    left = float(prior.value(theta)) / prior.strength
    gap = tree.subtract(part(theta, prior.prior), prior.prior)
    distance = float(tree.squared_norm(gap).sqrt())
    found, closed_form = [], sources.constants.closed_form
    for printed in _FORMS:
        bounds = Forgetting(sources, prior.strength, printed)
        found.append(_measured(bounds.divergence(left, distance), closed_form))
        if isinstance(prior, SquaredEuclidean):
            found.append(_measured(bounds.strongly_convex(left, 2.0), closed_form))
    return found


def stationarity_bounds(
    job: Job, setting: Setting, theorem: TheoremCheck, measurements: Sequence[Measurement]
) -> list[MeasuredBound]:
    """Stationarity: the smallest ‖∇F‖², for runs that the theorem is about with exact curvature."""
    algorithm = diagnosable(job)
    exact = algorithm.curvature == "exact" and algorithm.platform == "linearised"
    bounded_below = job.loss in (cross_entropy, squared_error)
    first, rounds = measurements[0].lagrangian, len(measurements)
    covered = exact and bounded_below and theorem.applies_to_algorithm
    if not covered or first is None or rounds < 2:
        return []
    left = min(one.gradient_norm for one in measurements[1:]) ** 2
    bound = stationarity(setting, rounds, left, first)
    return [_measured(bound, setting.constants.closed_form)]


def _measured(bound: Bound, closed_form: bool) -> MeasuredBound:
    return MeasuredBound(bound, check_bound(bound, closed_form))
