"""Several repeats of a training, each with a partition and a start of its own, computed together.

A repeat is one more axis to map over: ten repeats of forty nodes fill a GPU as four hundred nodes
do. Every repeat ends as it would have alone, up to the order of sums.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from fedmeta.algorithms.base import PlatformState
from fedmeta.data.description import describe
from fedmeta.engines.execution import machine
from fedmeta.engines.local import LocalEngine
from fedmeta.engines.reading import Reading
from fedmeta.errors import DivergedError, SettingError
from fedmeta.evaluation import Evaluation
from fedmeta.job import Job
from fedmeta.run_folder import Record, RunFolder
from fedmeta.training import Callback, Run, conclude, diverged, end, identify
from fedmeta.tree import map_leaves

Outcome = Run | DivergedError


def what_separates(jobs: Sequence[Job]) -> str | None:
    """Why jobs cannot be trained together, or None if they can."""
    first = jobs[0]
    if first.layout.execution.path != "batched":
        return "nodes are computed one by one"
    if first.participation.fraction < 1 or first.participation.lost > 0:
        return "not all nodes are counted in every round"
    if first.training.patience is not None:
        return "each may stop early"
    for job in jobs[1:]:
        if job.training.rounds != first.training.rounds:
            return "they run for different numbers of rounds"
        if len(job.federation.sources) != len(first.federation.sources):
            return "they have different numbers of source nodes"
        mine, theirs = job.model.constants, first.model.constants
        if not all(torch.equal(mine[name], theirs[name]) for name in theirs):
            return "their models have different frozen parts"
    return None


def train_together(
    jobs: Sequence[Job],
    *,
    folders: Sequence[Path] | None = None,
    origins: Sequence[Mapping[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Outcome]:
    """Train jobs that differ in federation, seed and start alone, all of them at once.

    Args:
        jobs: from `prepare`, the first with `repeats`, the others with its `layout`.
        folders: where the runs are kept, one per job; None keeps them in memory. Runs that were
            trained together have no checkpoints.
        origins: the settings table each run was built from.
        callbacks: told of every round, with the numbers of the first job.

    Returns:
        For every job its run, or the error that it diverged with; the others are not disturbed.

    Example:
        >>> import fedmeta
        >>> from fedmeta.job import prepare
        >>> settings = fedmeta.ModelSettings("mlp"), fedmeta.FedAvg()
        >>> jobs = []
        >>> for seed in (0, 1):
        ...     federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=10), seed)
        ...     training = fedmeta.TrainingSettings(rounds=3, seed=seed)
        ...     layout = jobs[0].layout if jobs else None
        ...     jobs.append(prepare(federation, *settings, training, repeats=2, layout=layout))
        >>> [run.summary["seed"] for run in train_together(jobs)]
        [0, 1]
    """
    if reason := what_separates(jobs):
        raise SettingError(f"these cannot be trained together: {reason}", "train them one by one")
    first, count = jobs[0], len(jobs)
    engine = LocalEngine(first.algorithm, [job.cohort for job in jobs], first.layout)
    identities = [
        identify(job, origins[i] if origins else None) | {"together": count}
        for i, job in enumerate(jobs)
    ]
    opened = [
        RunFolder.create(Path(folders[i]), identities[i], describe(job.federation))
        if folders
        else None
        for i, job in enumerate(jobs)
    ]
    with ExitStack() as contexts:
        contexts.enter_context(machine(first.layout.execution))
        for folder in opened:
            if folder is not None:
                contexts.enter_context(folder.held())
        state, nodes = engine.start(
            map_leaves(lambda *leaves: torch.stack(leaves), *(job.model.theta for job in jobs))
        )
        for callback in callbacks:
            callback.on_start(1, first.training.rounds)
        readings: list[Reading] = []
        evaluations: dict[int, list[Evaluation | None]] = {}
        started = time.perf_counter()
        for number in range(1, first.training.rounds + 1):
            state, nodes, reading = engine.round(state, nodes, number)
            readings.append(reading)
            if callbacks and number > 1:  # the round before, while the device computes this one
                _tell(callbacks, number - 1, readings[-2].of(0))
            if first.training.evaluates(number):
                evaluations[number] = [
                    job.evaluate(_repeat(state, i)) for i, job in enumerate(jobs)
                ]
        if readings:
            _tell(callbacks, len(readings), readings[-1].of(0))
        seconds = (time.perf_counter() - started) / max(1, len(readings)) / count
        notes = engine.notes()
        outcomes: list[Outcome] = []
        for i, job in enumerate(jobs):
            history, broken = _history(readings, evaluations, i, seconds)
            if history and notes:
                history[-1]["note"] = "; ".join(notes)
            folder = opened[i]
            if folder is not None:
                for record in history:
                    folder.append(record)
            mine = _repeat(state, i)
            if broken:
                end(job, identities[i], folder, history, mine, None, "diverged", ())
                outcomes.append(diverged(len(history) + 1, job.algorithm, folder))
                continue
            last = evaluations[max(evaluations)][i] if evaluations else None
            try:
                run = conclude(job, identities[i], folder, history, mine, last, "finished", ())
                outcomes.append(run)
            except DivergedError as error:
                outcomes.append(error)
        for callback in callbacks:
            callback.on_end({"status": "finished", "rounds": len(readings)})
    return outcomes


def _repeat(state: PlatformState, number: int) -> PlatformState:
    theta, memory = map_leaves(lambda leaf: leaf[number], (state.theta, dict(state.memory)))
    return PlatformState(theta, memory)


def _history(
    readings: Sequence[Reading],
    evaluations: Mapping[int, Sequence[Evaluation | None]],
    repeat: int,
    seconds: float,
) -> tuple[list[Record], bool]:
    """The records of one repeat up to the round in which it diverged, and whether it did."""
    history: list[Record] = []
    for number, reading in enumerate(readings, start=1):
        mine = reading.of(repeat)
        if not mine.finite:
            return history, True
        record: Record = {"round": number, **mine}
        evaluation = evaluations[number][repeat] if number in evaluations else None
        if evaluation is not None:
            record |= evaluation.means()
        history.append({**record, "seconds": seconds})
    return history, False


def _tell(callbacks: Sequence[Callback], number: int, reading: Reading) -> None:
    for callback in callbacks:
        callback.on_round({"round": number, **reading})
