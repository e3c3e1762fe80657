"""Jobs that are trained all at once, though each has a partition and a start of its own.

A job is one more axis to map over: ten repeats of forty nodes fill a GPU as four hundred nodes do.
Each may also have a prior model of its own. Every job ends as it would have alone, up to the order
of sums.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedmeta.algorithms.algorithm import PlatformState
from fedmeta.core.errors import DivergedError, SettingError
from fedmeta.core.run_folder import Record, RunFolder
from fedmeta.core.tree import map_leaves
from fedmeta.data.description import describe
from fedmeta.engine.execution import machine
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.round_metrics import Reading
from fedmeta.engine.stacked_priors import what_differs
from fedmeta.evaluation.evaluate import Evaluation, TargetStore, evaluate
from fedmeta.training.job import Job, TrainingSettings
from fedmeta.training.loop import Callback, Run, conclude, diverged, end, identify

Outcome = Run | DivergedError
"""What a job ends with."""


def what_separates(jobs: Sequence[Job]) -> str | None:
    """Why jobs cannot be trained together, or None if they can."""
    first = jobs[0]
    if first.layout.execution.path != "batched":
        return "nodes are computed one by one"
    if first.participation.fraction < 1 or first.participation.lost > 0:
        return "not all nodes are counted in every round"
    if first.uplink.privacy.dp == "central":
        return "the platform draws noise for the sum of each"
    if first.training.patience is not None:
        return "each may stop early"
    for job in jobs[1:]:
        if job.training.rounds != first.training.rounds:
            return "they run for different numbers of rounds"
        if _looks(job.training) != _looks(first.training):
            return "their targets are evaluated at different times"
        if job.uplink != first.uplink:
            return "their contributions are changed in different ways on their way"
        if len(job.federation.sources) != len(first.federation.sources):
            return "they have different numbers of source nodes"
        if differs := what_differs(first.algorithm, job.algorithm):
            return f"their algorithms differ in {differs}"
        mine, theirs = job.model.constants, first.model.constants
        if not all(torch.equal(mine[name], theirs[name]) for name in theirs):
            return "their models have different frozen parts"
    return None


def _looks(training: TrainingSettings) -> tuple[Any, ...]:
    """In which rounds targets are evaluated, and after which numbers of steps."""
    return training.evaluate_every, training.evaluation_steps


def train_together(
    jobs: Sequence[Job],
    *,
    folders: Sequence[Path] | None = None,
    origins: Sequence[Mapping[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Outcome]:
    """Train jobs that differ in federation, seed, start and θ_p alone, all of them at once.

    Args:
        jobs: from `prepare`, the first with `repeats`, the others with its `layout`. The priors of
            their algorithms may differ in tensors.
        folders: where the runs are kept, one per job; None keeps them in memory. Runs that were
            trained together have no checkpoints.
        origins: the settings table each run was built from.
        callbacks: told of every round, with the numbers of the first job.

    Returns:
        For every job its run, or the error that it diverged with; the others are not disturbed.

    Example:
        >>> import fedmeta
        >>> from fedmeta.training.job import prepare
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
    stop = jobs[0].training.rounds
    return train_together_to(jobs, [stop], folders, origins, callbacks)[stop]


def train_together_to(
    jobs: Sequence[Job],
    stops: Sequence[int],
    folders: Sequence[Path] | None = None,
    origins: Sequence[Mapping[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[int, list[Outcome]]:
    """What jobs end with after each of several numbers of rounds, the last of them their own.

    Args:
        jobs, origins, callbacks: see `train_together`.
        stops: numbers of rounds, at most the jobs' own.
        folders: where the runs of all rounds are kept.
    """
    if reason := what_separates(jobs):
        raise SettingError(f"these cannot be trained together: {reason}", "train them one by one")
    first = jobs[0]
    for job in jobs:  # values can be looked at only before they are mapped over
        if (prior := getattr(job.algorithm, "prior", None)) is not None:
            prior.checked(job.model.theta)
    algorithms = [job.algorithm for job in jobs]
    cohorts = [job.cohort for job in jobs]
    engine = LocalEngine(algorithms, cohorts, first.layout, uplink=first.uplink)

    def identified(alike: Sequence[Job]) -> list[dict[str, Any]]:
        known = origins or [{}] * len(jobs)
        pairs = zip(alike, known, strict=True)
        return [identify(job, origin) | {"together": len(jobs)} for job, origin in pairs]

    identities = identified(jobs)
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
                contexts.enter_context(folder.locked())
        course = _course(engine, jobs, stops, callbacks)
        outcomes: dict[int, list[Outcome]] = {}
        for stop in sorted(set(stops) - {first.training.rounds}):
            shorter = [job.lasting(stop) for job in jobs]
            outcomes[stop] = course.ends(shorter, identified(shorter), [None] * len(jobs))
        outcomes[first.training.rounds] = course.ends(jobs, identities, opened)
        for callback in callbacks:
            callback.on_end({"status": "finished", "rounds": len(course.readings)})
    return outcomes


@dataclass(frozen=True, eq=False)
class _Course:
    """What was seen of jobs on their way.

    Args:
        readings: one per round, until all have diverged.
        evaluations: by round, one per job.
        states: by number of rounds, where training may end.
        last: the state after all readings.
        notes: by round, what people should know of.
        seconds: per round and job.
    """

    readings: Sequence[Reading]
    evaluations: Mapping[int, Sequence[Evaluation | None]]
    states: Mapping[int, PlatformState]
    last: PlatformState
    notes: Mapping[int, Sequence[str]]
    seconds: float

    def ends(
        self,
        jobs: Sequence[Job],
        identities: Sequence[Mapping[str, Any]],
        folders: Sequence[RunFolder | None],
    ) -> list[Outcome]:
        """The outcome of jobs that last no longer than these did."""
        training = jobs[0].training
        stop, state = training.rounds, self.states.get(training.rounds, self.last)
        looks = [at for at in self.evaluations if at <= stop and training.evaluates(at)]
        evaluations = {at: self.evaluations[at] for at in looks}
        notes = [note for at, some in self.notes.items() if at <= stop for note in some]
        outcomes: list[Outcome] = []
        for i, (job, identity, folder) in enumerate(zip(jobs, identities, folders, strict=True)):
            history, broken = _history(self.readings[:stop], evaluations, i, self.seconds)
            if history and notes:
                history[-1]["note"] = "; ".join(notes)
            if folder is not None:
                for record in history:
                    folder.append(record)
            mine = _repeat(state, i)
            if broken:
                end(job, identity, folder, history, mine, None, "diverged", ())
                outcomes.append(diverged(len(history) + 1, job.algorithm, folder))
                continue
            last = evaluations[stop][i] if stop in evaluations else None
            try:
                outcomes.append(
                    conclude(job, identity, folder, history, mine, last, "finished", ())
                )
            except DivergedError as error:
                outcomes.append(error)
        return outcomes


def _course(
    engine: LocalEngine, jobs: Sequence[Job], stops: Sequence[int], callbacks: Sequence[Callback]
) -> _Course:
    """All rounds, or until all jobs have diverged."""
    first, count = jobs[0], len(jobs)
    training, rounds = first.training, first.training.rounds
    state, nodes = engine.start(
        map_leaves(lambda *leaves: torch.stack(leaves), *(job.model.theta for job in jobs))
    )
    for callback in callbacks:
        callback.on_start(1, rounds)
    readings: list[Reading] = []
    evaluations: dict[int, Sequence[Evaluation | None]] = {}
    looks = [each for each in range(1, rounds + 1) if training.evaluates(each) or each in stops]
    store = None
    if all(job.federation.targets for job in jobs):
        targets = [job.targets for job in jobs]
        store = TargetStore(targets, first.layout.execution, resident=len(looks) > 1)
    states, notes = {0: state}, {}
    started = time.perf_counter()
    for number in range(1, rounds + 1):
        state, nodes, reading = engine.round(state, nodes, number)
        readings.append(reading)
        notes[number] = engine.notes()
        if number > 1:  # the round before, while the device computes this one
            _tell(callbacks, number - 1, readings[-2].of(0))
            if not any(readings[-2].of(i).finite for i in range(count)):
                break  # all have diverged
        if number in looks:
            evaluations[number] = _evaluated(jobs, state, store, engine.chunk)
        if number in stops:
            states[number] = state
    if readings:
        _tell(callbacks, len(readings), readings[-1].of(0))
    seconds = (time.perf_counter() - started) / max(1, len(readings)) / count
    return _Course(readings, evaluations, states, state, notes, seconds)


def _evaluated(
    jobs: Sequence[Job], state: PlatformState, store: TargetStore | None, chunk: int
) -> Sequence[Evaluation | None]:
    """The targets of every job, all at once; one by one where some have none.

    Args:
        jobs: of equal settings.
        state: of all of them.
        store: their targets.
        chunk: nodes of every job that are computed at once, which may have become fewer.
    """
    states = [_repeat(state, i) for i in range(len(jobs))]
    if store is None:
        return [job.evaluate(mine) for job, mine in zip(jobs, states, strict=True)]
    models = [job.for_targets(mine) for job, mine in zip(jobs, states, strict=True)]
    layout = jobs[0].layout
    layout = replace(layout, execution=replace(layout.execution, chunk=chunk))
    return evaluate(layout, models, jobs[0].measured_after(states[0]), store)


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
