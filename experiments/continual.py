"""Continual problems: a prior task, then a new one that starts from its model θ_p.

All tasks share the full head: classes keep their numbers, nodes hold only some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from experiments.cell import Cell, Tasks, built
from experiments.dissimilarity import dissimilarities
from experiments.repeats import means, pool, record, seeded, short
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.tables import Table, subtable
from fedmeta.core.errors import DivergedError
from fedmeta.core.serialization import from_plain
from fedmeta.data import DataSettings, Federation, Node, Pool, deal_out
from fedmeta.data.federation import Role
from fedmeta.data.precise import with_precise
from fedmeta.evaluation.evaluate import Evaluation, evaluate_model
from fedmeta.priors import SquaredEuclidean
from fedmeta.training.callbacks import Callback
from fedmeta.training.run import Outcome, Run
from fedmeta.training.train import RunRequest, train_many

Progress = Callable[[str], Sequence[Callback]]


class Problem(NamedTuple):
    """The federations of both tasks; no sample is in two places."""

    prior: Federation
    new: Federation


def train_continually(
    cell: Cell, settings: RunSpec, point: Table | None, machine: Table, progress: Progress
) -> list[dict[str, Any]]:
    """Train θ_p, then what the cell says from there, and judge it on both tasks.

    Inputs are scaled as the prior task scaled them: θ_p was made for that.

    Args:
        cell: with its tasks.
        settings: of the new task.
        point: has the λ that was tuned; None takes the cell's.
        machine: settings of the machine.
        progress: given a label, the callbacks of a training.

    Returns:
        For every seed a record of the training, and what `_judged` adds.
    """
    tasks = cell.tasks
    assert isinstance(tasks, Tasks)
    problems = [draw(pool(settings.data, s), settings.data, tasks, s) for s in cell.seeds]
    priors = _priors(cell, problems, machine, progress)
    outcomes = dict(zip(cell.seeds, priors, strict=True))
    if tasks.learns:
        declared = subtable(cell.settings, "prior").get("strength", 0.0)
        strength = float(declared if point is None else point["strength"])
        repeats = {
            seed: from_prior(seeded(settings, seed), problems[seed], theta_p, strength)
            for seed, theta_p in outcomes.items()
            if isinstance(theta_p, Run)
        }
        trained = train_many(list(repeats.values()), progress(cell.path))
        outcomes |= dict(zip(repeats, trained, strict=True))
    return [
        {**record(seed, outcome), **_judged(outcome, problems[seed], tasks)}
        for seed, outcome in outcomes.items()
    ]


def draw(samples: Pool, data: DataSettings, tasks: Tasks, seed: int) -> Problem:
    """Sources and targets of the prior task, then of the new one, each from what is left."""
    targets = max(1, round(data.target_share * data.nodes))
    free = np.ones(len(samples.labels), np.bool_)
    groups: list[list[Node]] = []
    wanted: list[tuple[str, Role, tuple[float, ...], int]] = [
        ("prior", "source", tasks.prior, data.nodes - targets),
        ("prior", "target", tasks.prior, targets),
        ("new", "source", tasks.sources, data.nodes - targets),
        ("new", "target", tasks.targets, targets),
    ]
    for task, role, stretch, count in wanted:
        held = np.flatnonzero(free & np.isin(samples.labels, _classes(stretch, samples)))
        # Who holds what depends on labels alone; the images stay where they are.
        some = samples._replace(inputs=held[:, None], labels=samples.labels[held])
        drawn = deal_out(some, replace(data, nodes=count, target_share=0.0, precise=0), seed)
        group = [
            Node(f"{task}-{role}-{number:03d}", role, held[node.support], held[node.query])
            for number, node in enumerate(drawn.nodes)
        ]
        for node in group:
            free[node.support] = free[node.query] = False
        groups.append(group)
    everyone = [node for group in groups for node in group]
    if data.precise > 0:
        everyone, _ = with_precise(everyone, samples.labels, data.precise, seed)

    def federation(task: str) -> Federation:
        mine = [node for node in everyone if node.name.startswith(task)]
        return Federation(samples.inputs, samples.labels, samples.task, mine, samples.name)

    return Problem(federation("prior"), federation("new"))


def _classes(stretch: Sequence[float], samples: Pool) -> range:
    first, last = (round(share * len(samples.class_names)) for share in stretch)
    return range(first, last)


_TRAINED: dict[str, list[Outcome]] = {}  # the last θ_p, which the next cell often starts from


def _priors(
    cell: Cell, problems: Sequence[Problem], machine: Table, progress: Progress
) -> list[Outcome]:
    """θ_p of every seed: ADMM-FedMeta on the prior task. Cells that share it train it once."""
    assert isinstance(cell.tasks, Tasks)
    settings = prior_settings(cell, machine)
    name = f"{settings} {cell.tasks.prior} {cell.repeats}"
    if name not in _TRAINED:
        _TRAINED.clear()
        repeats = [RunRequest(seeded(settings, seed), problems[seed].prior) for seed in cell.seeds]
        _TRAINED[name] = train_many(repeats, progress(f"θ_p of {cell.path}"))
    return _TRAINED[name]


def prior_settings(cell: Cell, machine: Table) -> RunSpec:
    """What θ_p is trained with."""
    assert isinstance(cell.tasks, Tasks)
    own = dict(cell.tasks.training)
    return built(cell.settings, {"algorithm": ADMMFedMeta.name}, own, machine)


def from_prior(settings: RunSpec, problem: Problem, theta_p: Run, strength: float) -> RunRequest:
    """The new task, started at θ_p and, by ADMM-FedMeta with λ > 0, held near it.

    Other algorithms take no prior, and run without it.
    """
    model = theta_p.meta_model
    if strength > 0 and isinstance(settings.algorithm, ADMMFedMeta):
        pull = SquaredEuclidean(strength, model.theta)
        settings = replace(settings, algorithm=replace(settings.algorithm, prior=pull))
    return RunRequest(settings, problem.new, model.scaling, model.theta)


def _judged(outcome: Outcome, problem: Problem, tasks: Tasks) -> dict[str, Any]:
    """What a model does on both tasks.

    Returns:
        `accuracy` and `precise` on the targets of the new task, `prior` and `prior_precise` on
        those of the prior one, by adaptation steps; `prior_loss`, the forgetting cost L_p: the mean
        loss of the prior task's source nodes on their query sets, by steps (0: as the model is);
        for those who ask `targets`: of every target of the new task its dissimilarity and accuracy.
    """
    if isinstance(outcome, DivergedError):
        return {}
    model, seed = outcome.meta_model, outcome.summary["seed"]
    execution = from_plain(Execution, outcome.summary["settings"]["execution"], "execution")
    steps = sorted({0, 1, 5, model.adaptation.steps})

    def on(federation: Federation) -> Evaluation:
        return evaluate_model(model, federation, steps, execution=execution, seed=seed)

    new, prior = on(problem.new), on(problem.prior)
    as_targets = (replace(node, role="target") for node in problem.prior.sources)
    sources = on(problem.prior.with_nodes(as_targets)).summary()
    found: dict[str, Any] = {
        "accuracy": means(new.summary()),
        "precise": means(new.precise.summary()) if new.precise else {},
        "prior": means(prior.summary()),
        "prior_precise": means(prior.precise.summary()) if prior.precise else {},
        "prior_loss": {count: short(row["mean_loss"]) for count, row in sources.items()},
    }
    if tasks.dissimilarity:
        reached = (new.precise or new).values[model.adaptation.steps]
        psi = dissimilarities(model, problem.new, execution)
        found["targets"] = [[short(a), short(b)] for a, b in zip(psi, reached, strict=True)]
    return found
