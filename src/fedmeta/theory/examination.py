"""A run held against the theory: replay, constants, inequalities, bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from fedmeta.core import randomness
from fedmeta.core.errors import require_whole
from fedmeta.core.randomness import DiagnosisPurpose
from fedmeta.core.run_folder import Record
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.data.federation import Node
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.priors import Regularizer
from fedmeta.theory.bounds import Sizes
from fedmeta.theory.closed_form import (
    is_softmax_regression,
    of_softmax_regression,
    prior_smoothness,
)
from fedmeta.theory.constants import Constants
from fedmeta.theory.estimation import QUICK, Search, estimate, spectral_norm
from fedmeta.theory.falling import allowed_changes, judge_falls
from fedmeta.theory.findings import Findings
from fedmeta.theory.measured import adapted, differences, few_samples, forgotten, rate
from fedmeta.theory.penalties import smallest_penalty
from fedmeta.theory.problem import Problem
from fedmeta.theory.replay import Replay, all_counted, checked, penalties_of, problem_of
from fedmeta.theory.replay import replay as replayed
from fedmeta.theory.verdicts import diagnose
from fedmeta.training.job import Job

_MOST_LOOKS = 200  # where nobody says how often to look


@dataclass(frozen=True)
class Effort:
    """How closely a run is looked at.

    Args:
        every: look at every so manieth round; None: at every one, or at some 200 of a longer run.
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


def examine(
    job: Job,
    history: Sequence[Record],
    effort: Effort | None = None,
    tell: Callable[[Record], None] | None = None,
) -> Findings:
    """Replay a run, find its constants, and hold it against every inequality and bound.

    Args:
        job: of ADMM-FedMeta, prepared as for the run.
        history: what was logged of its rounds.
        effort: how closely; None: as `Effort` has it.
        tell: is given the record of every round that is done.
    """
    algorithm, sources, effort = checked(job), job.federation.sources, effort or Effort()
    every = effort.every or -(-len(history) // _MOST_LOOKS) or 1
    seen = replayed(job, history, every, effort.points, tell)
    rows = _drawn(len(sources), effort)
    chosen = [sources[row] for row in rows]
    problem, rule = problem_of(job, chosen, seen.adaptation), seen.adaptation
    whole = problem if len(rows) == len(sources) else problem_of(job, sources, rule)
    epsilon, target = whole.gradient_norm(seen.theta), _target(job, seen, effort)
    constants = _constants(job, problem, seen, effort, target)

    sizes = [Sizes(len(node.support), len(node.query)) for node in chosen]
    shares = problem.weights.tolist()  # of the chosen among themselves
    weights = whole.weights[rows].tolist()
    penalties = _penalties(job, history, rows)
    strength, mu_r = _pull(problem.prior, seen.theta, effort)
    if isinstance(problem.prior, Regularizer) and prior_smoothness(problem.prior) is None:
        constants = replace(constants, closed_form=False)
    # Inequalities count the nodes they are given, and mean all.
    some = strength * len(rows) / len(sources)
    least = tuple(
        smallest_penalty(constants, weights, some, mu_r, printed) for printed in (False, True)
    )
    diagnosis = diagnose(
        algorithm,
        constants,
        weights,
        penalties,
        some,
        mu_r,
        job.model.inference,
        _further(job),
    )
    allowed: tuple[float | None, ...] = (None,) * len(seen.looks)
    if len(rows) == len(sources):
        allowed = allowed_changes(
            algorithm, constants, weights, penalties, strength, mu_r, seen.looks
        )
    bounds = [
        *differences(job, problem, constants, seen),
        *few_samples(problem, constants, shares, sizes, seen.theta, epsilon),
    ]
    if target is not None:
        bounds += adapted(job, constants, shares, sizes, target, seen, epsilon)
    if problem.prior is not None:
        bounds += forgotten(problem.prior, constants, shares, sizes, seen.theta, epsilon)
    if every == 1 and len(rows) == len(sources):
        bounds += rate(job, constants, diagnosis, weights, penalties, strength, mu_r, seen.looks)
    return Findings(
        seen,
        tuple(node.name for node in chosen),
        constants,
        None if target is None else target.name,
        penalties,
        (least[0], least[1]),
        diagnosis,
        allowed,
        judge_falls(job, constants, diagnosis, seen.looks, allowed),
        tuple(bounds),
        _notes(job, seen, len(rows)),
    )


def _drawn(count: int, effort: Effort) -> list[int]:
    """Which sources have their constants found, ascending."""
    key = randomness.fold(randomness.key(effort.search.seed), DiagnosisPurpose.NODES)
    draws = randomness.uniform(key, count)
    return sorted(torch.argsort(draws)[: effort.nodes].tolist())


def _target(job: Job, seen: Replay, effort: Effort) -> Node | None:
    """The target that was asked for, or the one that the meta-model suits least."""
    targets = job.federation.targets
    if effort.target is not None:
        return job.federation.node(effort.target)
    if not targets:
        return None
    problem = replace(problem_of(job, targets, seen.adaptation), prior=None)
    gradients = problem.node_gradients(seen.theta).values()
    squares = torch.stack([leaf.flatten(1).square().sum(1) for leaf in gradients]).sum(0)
    return targets[int(squares.argmax())]


def _constants(
    job: Job, problem: Problem, seen: Replay, effort: Effort, target: Node | None
) -> Constants:
    one: NodeData | None = None
    if target is not None:
        data = problem_of(job, [target], seen.adaptation).data
        one = map_leaves(lambda leaf: leaf[0], data)
    rule = seen.adaptation
    if is_softmax_regression(job.model.inference, job.loss):
        return of_softmax_regression(problem.data, rule.step_size, one)
    search = replace(effort.search, nodes=problem.chunk)
    return estimate(problem.objective, rule, problem.data, seen.path, search, one)


def _penalties(job: Job, history: Sequence[Record], rows: Sequence[int]) -> tuple[float, ...]:
    rho = penalties_of(job)[list(rows)]
    if checked(job).automatic:  # there ρ_i stands for w_i: Σρ_i is what made steps that long
        ratios = [
            record["gradient_norm"] / record["step_norm"]
            for record in history
            if record.get("step_norm") and record.get("gradient_norm")
        ]
        rho = rho * (median(ratios) if ratios else 1.0)
    return tuple(rho.tolist())


def _pull(prior: Any, theta: Tree, effort: Effort) -> tuple[float, float]:
    """λ and μ_r of the prior, the latter by power iteration where there is no formula."""
    if not isinstance(prior, Regularizer):
        return 0.0, 2.0
    known = prior_smoothness(prior)
    if known is not None:
        return prior.strength, known
    _, pull_back, *_ = torch.func.vjp(prior.gradient, theta)

    def product(vector: Tree) -> Tree:
        bare = {name: leaf[0] for name, leaf in vector.items()}
        return {name: leaf[None] for name, leaf in pull_back(bare)[0].items()}

    like = {name: leaf[None] for name, leaf in theta.items()}
    norm, _ = spectral_norm(product, like, randomness.key(effort.search.seed), effort.search)
    return prior.strength, float(norm) / prior.strength


def _further(job: Job) -> tuple[str, ...]:
    """Departures from the theorem that are not the algorithm's."""
    facts = {
        "not all nodes are counted in every round": not all_counted(job),
        "samples are augmented at random": bool(
            job.settings["augmentation"]["flip"] or job.settings["augmentation"]["shift"]
        ),
        "dropout makes gradients random": bool(job.model.dropouts),
        "squared error has gradients of any size: no β holds for every θ": job.loss
        is squared_error,
    }
    return tuple(text for text, departs in facts.items() if departs)


def _notes(job: Job, seen: Replay, nodes: int) -> tuple[str, ...]:
    algorithm, count = checked(job), len(job.federation.sources)
    close = "the same bits" if seen.off == 0 else f"losses within {seen.off:.1g} of those logged"
    notes = [f"{seen.rounds} rounds computed again: {close}"]
    if seen.off > 1e-3:
        notes.append("that is not the same run: what follows is about the one computed here")
    if nodes < count:
        notes.append(f"constants of {nodes} of {count} sources; sums over nodes are their means")
    if algorithm.automatic:
        notes.append(
            "no fixed ρ: no 𝓛 and no residuals; ρ_i is that of a fixed penalty with steps as long"
        )
    elif not all_counted(job):
        notes.append("nodes that are not counted have no θ_i of the round: no 𝓛, no residuals")
    if job.loss not in (cross_entropy, squared_error):
        notes.append("a loss of your own may fall below 0: no rate is bounded")
    notes.append(
        "data size and adaptation speak of expected losses; a node's samples stand for them, "
        "which cannot prove a bound"
    )
    return tuple(notes)
