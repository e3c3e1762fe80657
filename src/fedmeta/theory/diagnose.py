"""A run against the convergence theory: its iterates, constants, inequalities and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

import numpy as np
import torch

from fedmeta.core import randomness
from fedmeta.core.errors import require_whole
from fedmeta.core.randomness import DiagnosisPurpose
from fedmeta.core.run_folder import Record
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.data.federation import Node
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.priors import Regularizer, SquaredEuclidean, SquaredMahalanobis
from fedmeta.theory.bounds import Sizes, Sources
from fedmeta.theory.closed_form import is_softmax_regression, of_softmax_regression
from fedmeta.theory.constants import Constants
from fedmeta.theory.descent import check_descent, descent_bounds, lagrangian_changes
from fedmeta.theory.estimation import QUICK, OnPart, Search, estimate, spectral_norm
from fedmeta.theory.measured_bounds import (
    MeasuredBound,
    adaptation_bounds,
    data_size_bounds,
    difference_error_bounds,
    forgetting_bounds,
    stationarity_bounds,
)
from fedmeta.theory.penalties import Setting, smallest_penalty
from fedmeta.theory.plain_words import plain_words
from fedmeta.theory.problem import Problem, squared_norms
from fedmeta.theory.theorem_check import TheoremCheck, Verdict, check_theorem
from fedmeta.theory.trajectory import (
    Trajectory,
    diagnosable,
    full_participation,
    penalties_of,
    problem_of,
    recompute,
)
from fedmeta.training.job import Job

_MOST_MEASUREMENTS = 200  # where nobody says how often to measure


@dataclass(frozen=True)
class DiagnosisSettings:
    """How closely a run is diagnosed.

    Args:
        every: measure at every n-th round; None: at every one, or at some 200 of a longer
            run.
        points: θ along the run to estimate constants at, besides the last.
        nodes: sources to estimate constants of, at most; more are drawn from by the search's seed.
        target: name of the target that adaptation is judged at; None: the one whose ‖∇F_m‖ is
            largest.
        search: for the constants.
    """

    every: int | None = None
    points: int = 1
    nodes: int = 50
    target: str | None = None
    search: Search = QUICK

    def __post_init__(self) -> None:
        if self.every is not None:
            require_whole("every", self.every, 1)
        require_whole("points", self.points, 1)
        require_whole("nodes", self.nodes, 1)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What theory says of a run, and what was measured.

    Args:
        trajectory: the run computed again.
        nodes: names of the sources that have constants.
        constants: theirs, and of `target`.
        target: name of the target that adaptation was judged at, or None.
        penalties: ρ_i of those nodes; under an automatic penalty those of a fixed one whose steps
            would be as long (the median over rounds, in proportion to w_i).
        least: the smallest ρ_i that the theorem allows: as derived and as printed.
        theorem: ρ, δ, layers, departures.
        allowed: by how much 𝓛 may change after each measurement; None where nothing is known.
        descent: the verdict on that, or None.
        bounds: what is bounded, with verdicts.
        notes: what a reader should know besides.
        plain: what matters to a user, a sentence each: whether it converged, whether its steps
            are sensible, whether it will forget.
    """

    trajectory: Trajectory
    nodes: tuple[str, ...]
    constants: Constants
    target: str | None
    penalties: tuple[float, ...]
    least: tuple[tuple[float, ...], tuple[float, ...]]
    theorem: TheoremCheck
    allowed: tuple[float | None, ...]
    descent: Verdict | None
    bounds: tuple[MeasuredBound, ...]
    notes: tuple[str, ...]
    plain: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All of them, in the order of the theory."""
        descent = () if self.descent is None else (self.descent,)
        return (*self.theorem.penalties, *descent, *(each.verdict for each in self.bounds))

    @property
    def slope(self) -> float | None:
        """The log-log slope of the smallest ‖∇F‖² so far against the round; the theorem's is −1."""
        seen = [(one.round, one.gradient_norm**2) for one in self.trajectory.measurements]
        if len(seen) < 3 or not all(square > 0 for _, square in seen):
            return None
        rounds, squares = np.array(seen).T
        least = np.minimum.accumulate(squares)
        return float(np.polyfit(np.log(rounds), np.log(least), 1)[0])

    def rises(self) -> tuple[int, int]:
        """In how many rounds 𝓛 rose, and how many were measured."""
        changes = lagrangian_changes(self.trajectory.measurements)
        known = [change for change in changes if change is not None]
        return sum(change > 0 for change in known), len(known)

    def as_json(self) -> dict[str, Any]:
        """For JSON; what is infinite or no number is None."""
        nu = [self.constants.nu(printed) for printed in (False, True)]
        nodes = [
            {
                "name": name,
                **asdict(self.constants.nodes[place]),
                "nu_derived": nu[0][place],
                "nu_printed": nu[1][place],
                "penalty": self.penalties[place],
                "least_derived": self.least[0][place],
                "least_printed": self.least[1][place],
            }
            for place, name in enumerate(self.nodes)
        ]
        own, measurements = self.constants.target, self.trajectory.measurements
        changes = lagrangian_changes(measurements)
        along = [
            {**{k: v for k, v in asdict(one).items() if k != "moved"}, "change": c, "allowed": a}
            for one, c, a in zip(measurements, changes, self.allowed, strict=True)
        ]
        found = {
            "rounds": self.trajectory.rounds,
            "replay_off": self.trajectory.deviation,
            "inside_the_theorem": self.theorem.inside,
            "closed_form": self.constants.closed_form,
            "step_size": self.constants.step_size,
            "nodes": nodes,
            "target": None if own is None else {"name": self.target, **asdict(own)},
            "verdicts": [{**asdict(each), "text": str(each)} for each in self.verdicts],
            "bounds": [
                {
                    "name": each.bound.name,
                    "printed": each.bound.printed,
                    "left": each.bound.left,
                    "right": each.bound.right,
                    "terms": dict(each.bound.terms),
                    "status": each.verdict.status,
                }
                for each in self.bounds
            ],
            "difference": self.theorem.difference._asdict(),
            "layers": [layer._asdict() for layer in self.theorem.layers],
            "departures": list(self.theorem.departures),
            "notes": list(self.notes),
            "plain": list(self.plain),
            "slope": self.slope,
            "along": along,
        }
        cleaned: dict[str, Any] = _finite(found)
        return cleaned


def diagnose_run(
    job: Job,
    history: Sequence[Record],
    settings: DiagnosisSettings | None = None,
    on_round: Callable[[Record], None] | None = None,
    on_part: OnPart = lambda _done, _parts: None,
) -> Diagnosis:
    """Compute a run again, find its constants, and hold it against every inequality and bound.

    Args:
        job: of ADMM-FedMeta, prepared as for the run.
        history: what was logged of its rounds.
        settings: how closely; None: as `DiagnosisSettings` has it.
        on_round: is given the record of every round that is done.
        on_part: is told how many parts of the search for constants are done, of how many.
    """
    algorithm, sources = diagnosable(job), job.federation.sources
    settings = settings or DiagnosisSettings()
    every = settings.every or -(-len(history) // _MOST_MEASUREMENTS) or 1
    trajectory = recompute(job, history, every, settings.points, on_round)
    rows = _chosen(len(sources), settings)
    chosen = [sources[row] for row in rows]
    problem, rule = problem_of(job, chosen, trajectory.adaptation), trajectory.adaptation
    whole = problem if len(rows) == len(sources) else problem_of(job, sources, rule)
    epsilon, target = whole.gradient_norm(trajectory.theta), _target(job, trajectory, settings)
    constants = _constants(job, problem, trajectory, settings, target, on_part)

    weights, penalties = whole.weights[rows].tolist(), _penalties(job, history, rows)
    strength = 0.0 if problem.prior is None else problem.prior.strength
    mu_r, known = _prior_smoothness(problem.prior, trajectory.theta, settings.search)
    constants = replace(constants, closed_form=constants.closed_form and known)
    sizes = [Sizes(len(node.support), len(node.query)) for node in chosen]
    shares = problem.weights.tolist()  # of the chosen among themselves
    trained = Sources(constants, shares, sizes, epsilon)
    # Inequalities count the nodes they are given, and mean all.
    some = strength * len(rows) / len(sources)
    setting = Setting(constants, weights, penalties, some, mu_r)
    theorem = check_theorem(algorithm, setting, job.model.inference, _other_departures(job))
    allowed: tuple[float | None, ...] = (None,) * len(trajectory.measurements)
    bounds = [
        *difference_error_bounds(job, problem, constants, trajectory),
        *data_size_bounds(problem, trained, trajectory.theta),
    ]
    if target is not None:
        bounds += adaptation_bounds(job, trained, target, trajectory)
    if problem.prior is not None:
        bounds += forgetting_bounds(problem.prior, trained, trajectory.theta)
    if len(rows) == len(sources):
        setting = replace(setting, strength=strength)
        allowed = descent_bounds(algorithm, setting, trajectory.measurements)
        if every == 1:
            bounds += stationarity_bounds(job, setting, theorem, trajectory.measurements)
    return Diagnosis(
        trajectory,
        tuple(node.name for node in chosen),
        constants,
        None if target is None else target.name,
        penalties,
        (
            smallest_penalty(constants, weights, some, mu_r),
            smallest_penalty(constants, weights, some, mu_r, printed=True),
        ),
        theorem,
        allowed,
        check_descent(job, constants.closed_form, theorem, trajectory.measurements, allowed),
        tuple(bounds),
        _notes(job, trajectory, len(rows)),
        plain_words(algorithm, history, trajectory.measurements),
    )


def _chosen(count: int, settings: DiagnosisSettings) -> list[int]:
    """Which sources have their constants found, ascending."""
    key = randomness.fold(randomness.key(settings.search.seed), DiagnosisPurpose.NODES)
    draws = randomness.uniform(key, count)
    return sorted(torch.argsort(draws)[: settings.nodes].tolist())


def _target(job: Job, trajectory: Trajectory, settings: DiagnosisSettings) -> Node | None:
    """The target that was asked for, or the one that the meta-model suits least."""
    targets = job.federation.targets
    if settings.target is not None:
        return job.federation.node(settings.target)
    if not targets:
        return None
    problem = replace(problem_of(job, targets, trajectory.adaptation), prior=None)
    gradients = problem.node_gradients(trajectory.theta)
    return targets[int(squared_norms(gradients).argmax())]


def _constants(
    job: Job,
    problem: Problem,
    trajectory: Trajectory,
    settings: DiagnosisSettings,
    target: Node | None,
    on_part: OnPart,
) -> Constants:
    rule, one = trajectory.adaptation, None
    if target is not None:
        one = map_leaves(lambda leaf: leaf[0], problem_of(job, [target], rule).data)
    if is_softmax_regression(job.model.inference, job.loss):
        return of_softmax_regression(problem.data, rule.step_size, one)
    search = replace(settings.search, nodes=problem.chunk)
    points = trajectory.iterates
    return estimate(problem.objective, rule, problem.data, points, search, one, on_part)


def _penalties(job: Job, history: Sequence[Record], rows: Sequence[int]) -> tuple[float, ...]:
    rho = penalties_of(job)[list(rows)]
    if diagnosable(job).automatic:  # there ρ_i stands for w_i: Σρ_i is what made steps that long
        ratios = [
            record["gradient_norm"] / record["step_norm"]
            for record in history
            if record.get("step_norm") and record.get("gradient_norm")
        ]
        rho = rho * (median(ratios) if ratios else 1.0)
    return tuple(rho.tolist())


def _prior_smoothness(prior: Regularizer | None, theta: Tree, search: Search) -> tuple[float, bool]:
    """μ_r of D_h(·, θ_p), and whether it is proven: else power iteration finds a lower bound."""
    if prior is None or isinstance(prior, SquaredEuclidean):
        return 2.0, True
    if isinstance(prior, SquaredMahalanobis):
        return 2 * max(float(leaf.max()) for leaf in prior.importance.values()), True
    _, pull_back, *_ = torch.func.vjp(prior.gradient, theta)

    def product(vector: Tree) -> Tree:
        bare = {name: leaf[0] for name, leaf in vector.items()}
        return {name: leaf[None] for name, leaf in pull_back(bare)[0].items()}

    like = {name: leaf[None] for name, leaf in theta.items()}
    norm, _ = spectral_norm(product, like, randomness.key(search.seed), search)
    return float(norm) / prior.strength, False


def _other_departures(job: Job) -> tuple[str, ...]:
    """Departures from the theorem that are not the algorithm's."""
    unbounded = job.loss is squared_error
    augmentation = job.settings["augmentation"]
    facts = {
        "not all nodes are counted in every round": not full_participation(job),
        "samples are augmented at random": augmentation["flip"] or augmentation["shift"],
        "labels are renamed at random": job.layout.objective.renames > 0,
        "classes are turned at random": job.layout.objective.turns > 0,
        "dropout makes gradients random": job.model.draws,
        "squared error has gradients of any size: no β holds for every θ": unbounded,
    }
    return tuple(text for text, departs in facts.items() if departs)


def _notes(job: Job, trajectory: Trajectory, nodes: int) -> tuple[str, ...]:
    algorithm, count = diagnosable(job), len(job.federation.sources)
    close = f"losses within {trajectory.deviation:.1g} of those logged"
    if trajectory.deviation == 0:
        close = "the same bits"
    notes = [f"{trajectory.rounds} rounds computed again: {close}"]
    if trajectory.deviation > 1e-3:
        notes.append("that is not the same run: what follows is about the one computed here")
    if nodes < count:
        notes.append(f"constants of {nodes} of {count} sources; sums over nodes are their means")
    if algorithm.automatic:
        notes.append(
            "no fixed ρ: no 𝓛 and no residuals; ρ_i is that of a fixed penalty with steps as long"
        )
    elif not full_participation(job):
        notes.append("nodes that are not counted have no θ_i of the round: no 𝓛, no residuals")
    if job.loss not in (cross_entropy, squared_error):
        notes.append("a loss of your own may fall below 0: no rate is bounded")
    notes.append(
        "data size and adaptation speak of expected losses; a node's samples stand for them, "
        "which cannot prove a bound"
    )
    return tuple(notes)


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
