"""Tuning λ of a continual problem on source nodes of both tasks that were held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.cell import Cell, Tasks
from experiments.continual import Problem, draw, from_prior, prior_settings
from experiments.repeats import pool, seeded, short
from experiments.tuned import best_point
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.tables import Table
from fedmeta.core.serialization import from_plain
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.studies.tune import HELD_OUT, grid
from fedmeta.training.callbacks import Callback
from fedmeta.training.run import Outcome, Run
from fedmeta.training.train import RunRequest, train_many


def search_strength(
    cell: Cell, machine: Table, progress: Callable[[str], Sequence[Callback]]
) -> dict[str, Any]:
    """Try every λ of the grid; returns `trials` and the `best` point, if any run finished.

    Targets are taken out first. Then a fifth of the source nodes of either task plays target: θ_p
    is trained without those of the prior task, the new task without its own, and a λ is as good as
    the mean of what the two fifths reach.

    Args:
        cell: with its tasks and its grid.
        machine: settings of the machine.
        progress: given a label, the callbacks of a training.
    """
    assert isinstance(cell.tasks, Tasks)
    settings, of_prior = (
        _blind(each) for each in (cell.build(machine), prior_settings(cell, machine))
    )
    problems = []
    for seed in cell.seeds:
        drawn = draw(pool(settings.data, seed), settings.data, cell.tasks, seed)
        problems.append(Problem(*(each.hold_out(HELD_OUT, seed) for each in drawn)))
    pairs = list(zip(cell.seeds, problems, strict=True))
    first = [RunRequest(seeded(of_prior, seed), problem.prior) for seed, problem in pairs]
    theta_p = train_many(first, progress(f"θ_p of {cell.path}"))
    known = [(*pair, run) for pair, run in zip(pairs, theta_p, strict=True) if isinstance(run, Run)]
    trials = []
    for point in grid(cell.grid):
        repeats = [
            from_prior(seeded(settings, seed), problem, run, float(point["strength"]))
            for seed, problem, run in known
        ]
        outcomes = train_many(repeats, progress(f"{cell.path} λ={point['strength']}"))
        reached = [
            _on_both(out, problem) for out, (_, problem, _) in zip(outcomes, known, strict=True)
        ]
        values = [each for each in reached if each is not None]
        mean = interval(values).mean if values else None
        trials.append({"point": point, "values": values, "mean": mean})
    return {"trials": trials, "best": best_point(trials)}


def _blind(settings: RunSpec) -> RunSpec:
    """Scaled by what source nodes hold: the pool has the targets' samples, too."""
    return replace(settings, data=replace(settings.data, scaling_from="sources"))


def _on_both(outcome: Outcome, problem: Problem) -> float | None:
    """The mean accuracy of those held out, of both tasks alike; None if it diverged."""
    if not isinstance(outcome, Run):
        return None
    model, summary = outcome.meta_model, outcome.summary
    execution = from_plain(Execution, summary["settings"]["execution"], "execution")
    steps, seed = model.adaptation.steps, summary["seed"]
    found = (
        evaluate_model(model, task, [steps], execution=execution, seed=seed) for task in problem
    )
    return short(float(np.mean([np.mean(each.values[steps]) for each in found])))
