"""Two-task experiments: a prior task, then a new one that starts from its model θ_p.

They are task sequences of `fedmeta.studies.sequences`, but for who holds what (see `draw`) and for
what is kept of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.cell import Cell, Tasks, built
from experiments.dissimilarity import dissimilarities
from experiments.training import Progress, execution_of, means, pool, record, short
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.algorithms.algorithm import takes_prior
from fedmeta.config.toml_files import Table, merged, subtable
from fedmeta.core.errors import DivergedError
from fedmeta.data import DataSettings, Federation, Node, Pool, deal_out
from fedmeta.data.federation import Role
from fedmeta.data.splitting import with_precise
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.evaluation.result import Evaluation
from fedmeta.studies.search import Point, Trial, best_point, search
from fedmeta.studies.sequences import Method, TaskSequence, TaskSettings
from fedmeta.studies.sequences.carrying import Past, next_task
from fedmeta.studies.sequences.drawing import Drawn
from fedmeta.studies.tune import HELD_OUT, grid
from fedmeta.training.callbacks import Callback
from fedmeta.training.many import train_many
from fedmeta.training.run import Outcome, Run

PRIOR, NEW = "prior", "new"


def train_two_tasks(
    cell: Cell, point: Table | None, machine: Table, progress: Progress
) -> list[dict[str, Any]]:
    """Train θ_p, then what the cell says from there, and judge it on both tasks.

    Inputs are scaled as the prior task scaled them: θ_p was made for that.

    Args:
        cell: with its tasks.
        point: has the λ that was tuned; None takes the cell's.
        machine: settings of the machine.
        progress: given a label, the callbacks of a training.

    Returns:
        For every seed a record of the training, and what `_judged` adds.
    """
    tasks = _tasks(cell)
    drawn = _drawn(cell, machine)
    outcomes = _prior_models(cell, drawn, machine, progress)
    if tasks.learns:
        declared = subtable(cell.settings, "prior").get("strength", 0.0)
        strength = float(declared if point is None else point["strength"])
        sequence = _sequence(cell, machine, strength)
        pasts = _pasts(drawn, outcomes)
        outcomes |= _learned(sequence, 1, pasts, progress(cell.path), tasks.begins == "anew")
    return [
        {**record(seed, outcome), **_judged(outcome, drawn[seed], tasks)}
        for seed, outcome in outcomes.items()
    ]


def search_strength(cell: Cell, machine: Table, progress: Progress) -> dict[str, Any]:
    """Try every λ of the grid; returns `trials` and the `best` point, if any run finished.

    Targets are taken out first. Then a fifth of the source nodes of either task plays target: θ_p
    is trained without those of the prior task, the new task without its own, and a λ is as good as
    the mean of what the two fifths reach.

    Args:
        cell: with its tasks and its grid.
        machine: settings of the machine.
        progress: given a label, the callbacks of a training.
    """
    # Scaled by what source nodes hold: the pool has the targets' samples, too.
    sources_only = merged([machine, {"data": {"scaling_from": "sources"}}])
    drawn = {seed: one.held_out(HELD_OUT, seed) for seed, one in _drawn(cell, sources_only).items()}
    sequence = _prior_sequence(cell, sources_only)
    theta_p = _learned(sequence, 0, _pasts(drawn), progress(f"θ_p of {cell.path}"))

    def judge(point: Point) -> Trial:
        sequence = _sequence(cell, sources_only, float(point["strength"]))
        callbacks = progress(f"{cell.path} λ={point['strength']}")
        outcomes = _learned(sequence, 1, _pasts(drawn, theta_p), callbacks)
        reached = [_on_both(outcome, drawn[seed]) for seed, outcome in outcomes.items()]
        values = [each for each in reached if each is not None]
        mean = interval(values).mean if values else None
        return {"point": point, "values": values, "mean": mean}

    trials = search(grid(cell.grid), judge)
    return {"trials": trials, "best": best_point(trials)}


def _tasks(cell: Cell) -> Tasks:
    assert isinstance(cell.tasks, Tasks)
    return cell.tasks


def _sequence(
    cell: Cell, machine: Table, strength: float, own: Table | None = None
) -> TaskSequence:
    """Both tasks; ADMM-FedMeta with λ > 0 is held near θ_p, other algorithms take no prior.

    Args:
        cell: for its settings.
        machine: settings of the machine.
        strength: λ.
        own: settings on top of the cell's.
    """
    settings = merged([cell.settings, own or {}, machine])
    settings.pop("prior", None)
    return TaskSequence(
        cell.path,
        (TaskSettings(PRIOR), TaskSettings(NEW)),
        settings,
        Method("euclidean" if takes_prior(built(settings).algorithm) else None),
        {"euclidean": strength},
    )


def _learned(
    sequence: TaskSequence,
    number: int,
    pasts: Mapping[int, Past],
    callbacks: Sequence[Callback],
    anew: bool = False,
) -> dict[int, Outcome]:
    """A task (its number, from 0) by all seeds, from the model before it or from new weights."""
    repeats = [next_task(sequence, number, seed, past, None) for seed, past in pasts.items()]
    if anew:
        repeats = [replace(each, spec=replace(each.spec, start=None)) for each in repeats]
    return dict(zip(pasts, train_many(repeats, callbacks), strict=True))


_TRAINED: dict[str, dict[int, Outcome]] = {}  # the last θ_p, which the next cell often starts from


def _prior_models(
    cell: Cell, drawn: Mapping[int, Drawn], machine: Table, progress: Progress
) -> dict[int, Outcome]:
    """θ_p of every seed. Cells that share it train it once."""
    sequence = _prior_sequence(cell, machine)
    name = f"{sequence.of_task(0, 0)} {_tasks(cell).prior} {cell.repeats}"
    if name not in _TRAINED:
        _TRAINED.clear()
        callbacks = progress(f"θ_p of {cell.path}")
        _TRAINED[name] = _learned(sequence, 0, _pasts(drawn), callbacks)
    return dict(_TRAINED[name])


def _prior_sequence(cell: Cell, machine: Table) -> TaskSequence:
    """The sequence whose first task θ_p is trained on, always by ADMM-FedMeta."""
    own = merged([{"algorithm": ADMMFedMeta.name}, _tasks(cell).training])
    return _sequence(cell, machine, 0.0, own)


def _pasts(
    drawn: Mapping[int, Drawn], theta_p: Mapping[int, Outcome] | None = None
) -> dict[int, Past]:
    """What each seed has learned: nothing, or θ_p; seeds whose θ_p diverged are left out."""
    if theta_p is None:
        return {seed: Past(each) for seed, each in drawn.items()}
    finished = {seed: each for seed, each in theta_p.items() if isinstance(each, Run)}
    return {seed: Past(drawn[seed], {0: run.meta_model}) for seed, run in finished.items()}


def _drawn(cell: Cell, machine: Table) -> dict[int, Drawn]:
    data = cell.build(machine).data_settings
    return {seed: draw(pool(data, seed), data, _tasks(cell), seed) for seed in cell.seeds}


def draw(samples: Pool, data: DataSettings, tasks: Tasks, seed: int) -> Drawn:
    """Sources and targets of the prior task, then of the new one, each from what is left.

    Not as `fedmeta.studies.sequences.drawing` does it, which draws sources and targets of a task at
    once, from the same classes: here targets may hold others, and the results that are kept were
    obtained in this order.
    """
    targets = max(1, round(data.target_share * data.nodes))
    free = np.ones(len(samples.labels), np.bool_)
    everyone: list[Node] = []
    wanted: list[tuple[str, Role, tuple[float, ...], int]] = [
        (PRIOR, "source", tasks.prior, data.nodes - targets),
        (PRIOR, "target", tasks.prior, targets),
        (NEW, "source", tasks.sources, tasks.nodes or data.nodes - targets),
        (NEW, "target", tasks.targets, targets),
    ]
    for task, role, stretch, count in wanted:
        held = np.flatnonzero(free & np.isin(samples.labels, _classes(stretch, samples)))
        # Who holds what depends on labels alone; the images stay where they are.
        some = samples._replace(inputs=held[:, None], labels=samples.labels[held])
        dealt = deal_out(some, replace(data, nodes=count, target_share=0.0, precise=0), seed)
        for number, node in enumerate(dealt.nodes):
            support, query = held[node.support], held[node.query]
            everyone.append(Node(f"{task}-{role}-{number:03d}", role, support, query))
            free[support] = free[query] = False
    if data.precise > 0:
        everyone, _ = with_precise(everyone, samples.labels, data.precise, seed)

    def federation(task: str) -> Federation:
        mine = [node for node in everyone if node.name.startswith(task)]
        drawn = Federation(samples.inputs, samples.labels, samples.task, mine, samples.name)
        return replace(drawn, few_classes=False)  # gradient steps, as in the paper

    return Drawn([federation(PRIOR), federation(NEW)], platform=(), classes=())


def _classes(stretch: Sequence[float], samples: Pool) -> range:
    first, last = (round(share * len(samples.class_names)) for share in stretch)
    return range(first, last)


def _judged(outcome: Outcome, drawn: Drawn, tasks: Tasks) -> dict[str, Any]:
    """What a model does on both tasks.

    Returns:
        `accuracy` and `precise` on the targets of the new task, `prior` and `prior_precise` on
        those of the prior one, by adaptation steps; `prior_loss`, the forgetting cost L_p: the mean
        loss of the prior task's source nodes on their query sets, by steps (0: as the model is);
        for those who ask `targets`: of every target of the new task its dissimilarity and accuracy.
    """
    if isinstance(outcome, DivergedError):
        return {}
    model, (prior_task, new_task) = outcome.meta_model, drawn.tasks
    steps = sorted({0, 1, 5, model.adaptation.steps})
    new, prior = (_evaluated(outcome, task, steps) for task in (new_task, prior_task))
    as_targets = (replace(node, role="target") for node in prior_task.sources)
    sources = _evaluated(outcome, prior_task.with_nodes(as_targets), steps).summary()
    found: dict[str, Any] = {
        "accuracy": means(new.summary()),
        "precise": means(new.precise.summary()) if new.precise else {},
        "prior": means(prior.summary()),
        "prior_precise": means(prior.precise.summary()) if prior.precise else {},
        "prior_loss": {count: short(row["mean_loss"]) for count, row in sources.items()},
    }
    if tasks.dissimilarity:
        reached = (new.precise or new).values[model.adaptation.steps]
        psi = dissimilarities(model, new_task, execution_of(outcome))
        found["targets"] = [[short(a), short(b)] for a, b in zip(psi, reached, strict=True)]
    return found


def _on_both(outcome: Outcome, drawn: Drawn) -> float | None:
    """The mean accuracy of those held out, of both tasks alike; None if it diverged."""
    if isinstance(outcome, DivergedError):
        return None
    steps = outcome.meta_model.adaptation.steps
    found = [_evaluated(outcome, task, [steps]) for task in drawn.tasks]
    return short(float(np.mean([np.mean(each.values[steps]) for each in found])))


def _evaluated(run: Run, federation: Federation, steps: Sequence[int]) -> Evaluation:
    seed = run.summary["seed"]
    return evaluate_model(run.meta_model, federation, steps, execution=execution_of(run), seed=seed)
