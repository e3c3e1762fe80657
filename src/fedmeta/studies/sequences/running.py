"""Task after task, for all seeds at once where that can be.

FOLDER/seed-0/1-NAME, 2-NAME, …    every task of every seed is a run folder
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from fedmeta.config.execution import Execution
from fedmeta.core.errors import DivergedError, SettingError
from fedmeta.core.run_folder import RunFolder, parsing
from fedmeta.core.serialization import deserialize
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import is_code_name
from fedmeta.data.federation import Role
from fedmeta.data.pool import Array
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.result import Evaluation
from fedmeta.models.losses import named_loss
from fedmeta.models.meta_model import MetaModel
from fedmeta.studies.gate import node_samples
from fedmeta.studies.sequences.carrying import (
    Past,
    as_used,
    look_for_border,
    next_task,
    shared_network,
    start,
)
from fedmeta.studies.sequences.declaration import FOUND, TaskSequence
from fedmeta.studies.sequences.drawing import Drawn, draw, in_task
from fedmeta.studies.sequences.gating import verdicts
from fedmeta.studies.sequences.one_head import one_head_row
from fedmeta.studies.sequences.replay import require_same_devices
from fedmeta.training.callbacks import Callback
from fedmeta.training.many import jobs_together, train_jobs
from fedmeta.training.run import Outcome
from fedmeta.training.train import RunRequest, train_run

Progress = Callable[[str], Sequence[Callback]]
Learned = tuple[MetaModel, Execution]
Trainer = Callable[[TaskSequence, int, Past, RunRequest, Sequence[Callback]], None]
"""Brings the run of a task (its number, from 0) to its end elsewhere: over a fleet.

It goes on where it was, does nothing to a run that has ended, and adds to `Past.diagonals` what
the method asks for.
"""

_BLOWN_UP = "the adapted model of a target is no longer finite"


def run_sequence(
    sequence: TaskSequence,
    seeds: Sequence[int] = (0,),
    *,
    folder: Path | None = None,
    progress: Progress = lambda _label: (),
    held_out: float | None = None,
    trainer: Trainer | None = None,
) -> list[dict[str, Any]]:
    """Learn the tasks in their order and judge every model on the targets of all tasks.

    Args:
        sequence: the tasks and the method.
        seeds: one repeat each: own nodes, own weights.
        folder: where runs are kept. What is there already is not trained again, and a task that
            was interrupted goes on where it was: the result is the same to the bit.
        progress: given a label, the callbacks of a training.
        held_out: if given, targets are left alone and that share of the source nodes judges.
        trainer: None: in this process. With another, source nodes are asked nothing here, so
            there is no `cost`; a folder is needed.

    Returns:
        For every seed: `seed`; `diverged`, and then `why`; `accuracy` and, where targets have them,
        `precise`: the matrix (see `measures`), and those of `one_head`; `gate`: what the earlier
        tasks say of each model after the first (see `gating`); `borders`, where they are found
        (see `drift`): the numbers of the tasks before them, from 0; `cost`: L_p of every earlier
        task at the end, if finite.

    Example:
        >>> from fedmeta.studies.sequences import TaskSettings, run_sequence
        >>> tasks = TaskSettings("a", (0, 1)), TaskSettings("b", (2, 3))
        >>> few = {"data": {"nodes": 5, "samples": [4, 4]}, "training": {"rounds": 1}}
        >>> (found,) = run_sequence(TaskSequence("few", tasks, few))
        >>> len(found["accuracy"]), len(found["accuracy"][0])
        (3, 2)
    """
    pasts = {seed: Past(draw(sequence, seed)) for seed in seeds}
    if held_out is not None:
        pasts = {seed: Past(past.drawn.held_out(held_out, seed)) for seed, past in pasts.items()}
    _check(sequence, next(iter(pasts.values())).drawn)
    if trainer is not None and sequence.borders == FOUND:
        raise SettingError(
            "borders are to be found, which asks sources for losses before every task",
            "learn the sequence in one process, or give the borders",
        )
    if sequence.method.joint:
        return _jointly(sequence, pasts, folder, progress, trainer)
    judged: dict[int, list[_Judged]] = {}
    lost: dict[int, str] = {}
    for number, task in enumerate(sequence.tasks):
        going = {seed: past for seed, past in pasts.items() if seed not in lost}
        network = shared_network(list(going.values()))
        if sequence.borders == FOUND and number > 0:
            for seed, past in going.items():
                look_for_border(number, past, seed)
        repeats = [
            _kept(next_task(sequence, number, s, past, network), folder, s, number, task.name)
            for s, past in going.items()
        ]
        callbacks = progress(f"{sequence.method} {task.name}")
        outcomes = _learned_by(trainer, sequence, number, going, repeats, callbacks)
        for (seed, past), outcome in zip(going.items(), outcomes, strict=True):
            if isinstance(outcome, str):
                lost[seed] = f"task {task.name}: {outcome}"
                continue
            model, past.execution = outcome
            initial = start(sequence.of_task(0, seed), past.drawn)
            if number == 0:  # row 0, the model before any task
                before = replace(model, theta=initial)
                judged[seed] = [_judged(sequence, before, past, initial, seed, 0)]
            past.keep(sequence, model)
            judged[seed].append(_judged(sequence, model, past, initial, seed, number + 1))
            if not _is_finite(judged[seed]):
                lost[seed] = f"task {task.name}: {_BLOWN_UP}"
    return [
        {"seed": seed, "diverged": True, "why": lost[seed]}
        if seed in lost
        else {
            "seed": seed,
            "diverged": False,
            **_matrices(judged[seed]),
            "gate": [
                verdicts(
                    sequence, number, judged[seed][number].nodes, judged[seed][number + 1].nodes
                )
                for number in range(1, len(sequence.tasks))
            ],
            **({"borders": past.borders} if sequence.borders == FOUND else {}),
            **(_cost(sequence, past, seed) if trainer is None else {}),
        }
        for seed, past in pasts.items()
    ]


def _check(sequence: TaskSequence, drawn: Drawn) -> None:
    """Refuse what the method or the measures cannot do, before anything is trained."""
    first = drawn.tasks[0]
    if first.task.kind != "classification":
        raise SettingError("the tasks are regression", "sequences are measured by accuracy")
    names = [task.name for task in sequence.tasks]
    for name, task in zip(names, drawn.tasks, strict=True):
        if not task.targets:
            raise SettingError(f"task {name!r} has no target nodes", "raise target_share")
    if sequence.method.replay or sequence.method.isolation:
        require_same_devices(drawn.tasks, names, str(sequence.method))


def _kept(repeat: RunRequest, folder: Path | None, seed: int, number: int, task: str) -> RunRequest:
    """The repeat with the folder it is kept in."""
    if folder is None:
        return repeat
    return replace(repeat, folder=folder / f"seed-{seed}" / f"{number + 1}-{task}")


def _learned_by(
    trainer: Trainer | None,
    sequence: TaskSequence,
    number: int,
    pasts: Mapping[int, Past],
    repeats: Sequence[RunRequest],
    callbacks: Sequence[Callback],
) -> list[Learned | str]:
    """A task of all seeds, learned here or elsewhere: models, or why there is none."""
    if trainer is None:
        return _trained(repeats, callbacks)
    for past, each in zip(pasts.values(), repeats, strict=True):
        trainer(sequence, number, past, each, callbacks)
    return [_read(each) for each in repeats]


def _trained(repeats: Sequence[RunRequest], callbacks: Sequence[Callback]) -> list[Learned | str]:
    """The models of all repeats, or why there is none; what lies on disk is not trained again.

    Repeats that are trained together have no checkpoints, and what they add up to depends on who
    else is there: if one of them has not ended, all begin anew.
    """
    if all(_has_ended(each) for each in repeats):
        return [_read(each) for each in repeats]
    if (jobs := jobs_together(repeats)) is None:
        return [
            _read(each) if _has_ended(each) else _learned_alone(each, callbacks) for each in repeats
        ]
    for each in repeats:
        if each.folder is not None:
            shutil.rmtree(each.folder, ignore_errors=True)
    outcomes = train_jobs(repeats, jobs, callbacks)[jobs[0].training.rounds]
    return [_learned(outcome) for outcome in outcomes]


def _learned_alone(request: RunRequest, callbacks: Sequence[Callback]) -> Learned | str:
    try:
        return _learned(train_run(request, callbacks, resume=_has_begun(request)))
    except DivergedError as error:
        return error.problem


def _has_ended(repeat: RunRequest) -> bool:
    return repeat.folder is not None and RunFolder(repeat.folder).has_ended()


def _has_begun(repeat: RunRequest) -> bool:
    return repeat.folder is not None and (repeat.folder / "settings.json").exists()


def _learned(outcome: Outcome) -> Learned | str:
    if isinstance(outcome, DivergedError):
        return outcome.problem
    return outcome.meta_model, _execution(outcome.summary)


def _read(repeat: RunRequest) -> Learned | str:
    assert repeat.folder is not None
    summary = RunFolder.open(repeat.folder).summary()
    with parsing(repeat.folder, "summary.json"):
        if summary["status"] == "diverged":
            return "training diverged"
        execution = _execution(summary)
    loss: Any = repeat.spec.loss
    if isinstance(loss, str):  # one that is built in the file says itself
        loss = named_loss(loss, repeat.federation.task) if is_code_name(loss) else None
    return MetaModel.load(repeat.folder, repeat.spec.model, loss), execution


def _execution(summary: Any) -> Execution:
    return deserialize(Execution, summary["settings"]["execution"], "execution")


class _Judged(NamedTuple):
    """A model on the targets of every task.

    Args:
        row: `accuracy` of each task, perhaps `precise`, and what the field measures.
        nodes: of each task what every target has right, on its precise set if it has one.
    """

    row: list[dict[str, float]]
    nodes: list[dict[str, Array]]


def _judged(
    sequence: TaskSequence, model: MetaModel, past: Past, initial: Tree, seed: int, learned: int
) -> _Judged:
    tasks = range(len(sequence.tasks))
    used = [as_used(sequence, model, number, past, initial) for number in tasks]
    shared = not sequence.method.isolation
    assert past.execution is not None
    device = past.execution.torch_device
    there = {id(each): _on(each, device) for each in used}
    asked = [there[id(each)] for each in used]
    row, nodes = one_head_row(asked, past.drawn, learned, shared=shared, device=device), []
    for number, found in zip(tasks, _evaluated(used, past, "target", None, seed), strict=True):
        here = row[number]
        own = in_task(past.drawn.first(number), "")
        here["accuracy"] = _mean(own, found, found.values)
        if found.precise is not None:
            here["precise"] = _mean(own, found.precise, found.precise.values)
        values = node_samples(found).items()
        nodes.append({node: value for node, value in values if node.startswith(own)})
    return _Judged(row, nodes)


def _on(model: MetaModel, device: torch.device) -> MetaModel:
    theta = {name: leaf.to(device) for name, leaf in model.theta.items()}
    dtype = next(iter(theta.values())).dtype
    return replace(model, network=model.network.to(device, dtype), theta=theta)


def _cost(sequence: TaskSequence, past: Past, seed: int) -> dict[str, Any]:
    """L_p: the loss of the earlier tasks' source nodes on their query sets, model as it is."""
    last, earlier = past.latest, range(len(sequence.tasks) - 1)
    used = [as_used(sequence, last, number, past, last.theta) for number in earlier]
    found = _evaluated(used, past, "source", 0, seed)
    costs = [
        _mean(in_task(past.drawn.first(k), ""), each, each.losses)
        for k, each in zip(earlier, found, strict=True)
    ]
    return {"cost": costs} if all(map(isfinite, costs)) else {}


def _evaluated(
    models: Sequence[MetaModel], past: Past, role: Role, steps: int | None, seed: int
) -> list[Evaluation]:
    """For each of the first tasks its model on its nodes; tasks that share one go together.

    Args:
        models: of each task, from the first.
        past: the nodes, and how they are computed.
        role: of the nodes that are asked.
        steps: of adaptation; None: the model's own number.
        seed: of the repeat.
    """
    assert past.execution is not None
    done: dict[int, Evaluation] = {}
    for model in models:
        if id(model) not in done:
            numbers = [number for number, each in enumerate(models) if each is model]
            count = model.adaptation.steps if steps is None else steps
            nodes = past.drawn.judges(numbers, role)
            found = evaluate_model(model, nodes, [count], execution=past.execution, seed=seed)
            done[id(model)] = found
    return [done[id(model)] for model in models]


def _mean(own: str, found: Evaluation, by_steps: Mapping[int, Sequence[float]]) -> float:
    """Over the nodes whose names begin with that of their task; there is one number of steps."""
    (values,) = by_steps.values()
    named = zip(found.nodes, values, strict=True)
    return float(f"{fmean(v for name, v in named if name.startswith(own)):.6g}")


def _is_finite(judged: Sequence[_Judged]) -> bool:
    return all(isfinite(value) for of in judged for each in of.row for value in each.values())


def _matrices(judged: Sequence[_Judged]) -> dict[str, Any]:
    names = judged[0].row[0]
    return {name: [[each[name] for each in of.row] for of in judged] for name in names}


def _jointly(
    sequence: TaskSequence,
    pasts: dict[int, Past],
    folder: Path | None,
    progress: Progress,
    trainer: Trainer | None,
) -> list[dict[str, Any]]:
    """All tasks at once, for as many rounds as they have one after the other."""
    repeats = []
    for seed, past in pasts.items():
        tasks = [sequence.of_task(number, seed) for number in range(len(sequence.tasks))]
        rounds = sum(each.training.rounds for each in tasks)
        settings = replace(tasks[0], training=replace(tasks[0].training, rounds=rounds))
        repeats.append(_kept(RunRequest(settings, past.drawn.joint()), folder, seed, 0, "joint"))
    callbacks = progress(f"{sequence.method} {sequence.name}")
    outcomes = _learned_by(trainer, sequence, 0, pasts, repeats, callbacks)
    found = []
    for (seed, past), outcome in zip(pasts.items(), outcomes, strict=True):
        if isinstance(outcome, str):
            found.append({"seed": seed, "diverged": True, "why": outcome})
            continue
        model, past.execution = outcome
        judged = _judged(sequence, model, past, model.theta, seed, len(sequence.tasks))
        if _is_finite([judged]):
            found.append({"seed": seed, "diverged": False, **_matrices([judged])})
        else:
            found.append({"seed": seed, "diverged": True, "why": _BLOWN_UP})
    return found
