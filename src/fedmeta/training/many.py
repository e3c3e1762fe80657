"""Many runs: trained all at once where that is possible and pays, else one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import DivergedError, MemoryBudgetError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.user_code import is_code_name
from fedmeta.data.federation import describe
from fedmeta.data.few_classes import holds_few_classes
from fedmeta.data.loading import load
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.engine.resolution import convolves
from fedmeta.engine.stacked_priors import what_differs
from fedmeta.models.losses import Balanced, named_loss
from fedmeta.models.networks import ModelSettings
from fedmeta.training.callbacks import Callbacks
from fedmeta.training.ending import identify
from fedmeta.training.job import Job, prepare
from fedmeta.training.loop import RoundLoop
from fedmeta.training.run import Outcome, Run
from fedmeta.training.train import AnyCallback, RunRequest, train_run


def train_many(
    specs: Sequence[RunSpec | RunRequest],
    callbacks: Sequence[AnyCallback] = (),
    *,
    resume: bool = False,
) -> list[Outcome]:
    """Train every run: all at once where possible, else one after the other.

    Args:
        specs: what to train; where only the description is given, its data are loaded.
        callbacks: told of every round; of the first run's where they are trained at once.
        resume: go on in their folders: what has ended is read again, what was interrupted is
            continued, or trained anew where all are trained at once.

    Returns:
        For every spec its run, or the error that it diverged with; the others are not disturbed.
        Runs that were trained together have no checkpoints.

    Example:
        >>> import fedmeta
        >>> data = fedmeta.DataSettings("sinusoid", nodes=10)
        >>> spec = RunSpec(data, algorithm=fedmeta.FedAvg()).replaced(rounds=3)
        >>> both = train_many([spec.replaced(seed=seed) for seed in (0, 1)])
        >>> [run.summary["seed"] for run in both]
        [0, 1]
    """
    requests = [
        RunRequest(each, load(each.data_settings, each.training.seed))
        if isinstance(each, RunSpec)
        else each
        for each in specs
    ]
    requests = [_as_the_first(each, requests[0]) for each in requests]
    if resume and all(_has_ended(each) for each in requests):
        return [reread(each) for each in requests]
    if (jobs := jobs_together(requests)) is not None:
        if resume:
            for each in requests:
                _discard(each)
        return train_jobs(requests, jobs, callbacks)[jobs[0].training.rounds]
    return [_outcome(each, callbacks, resume=resume) for each in requests]


def _as_the_first(request: RunRequest, first: RunRequest) -> RunRequest:
    """Repeats adapt in one way, also where seeds deal few classes to the nodes of some alone."""
    mine, theirs = request.federation, first.federation
    repeat = request.spec.data == first.spec.data and mine.task == theirs.task
    if not repeat or (few := holds_few_classes(theirs)) == holds_few_classes(mine):
        return request
    return replace(request, federation=replace(mine, few_classes=few))


def train_to_stops(
    requests: Sequence[RunRequest], stops: Sequence[int], callbacks: Sequence[AnyCallback] = ()
) -> dict[int, list[Outcome]]:
    """What runs end with, and what they would have ended with after other rounds.

    A shorter training is the beginning of a longer one, so that several cost no more than the
    longest. Only those that are trained all at once can be looked at on the way. Where they are
    not, and where nodes add noise for a promise that counts rounds, the runs' own number of rounds
    is all there is.

    Args:
        requests: as for `train_many`.
        stops: numbers of rounds beside their own.
        callbacks: told of every round.
    """
    own = requests[0].spec.training.rounds
    longest = [each.lasting(max(own, *stops)) for each in requests] if stops else []
    jobs = jobs_together(longest)
    if jobs is None or jobs[0].uplink.privacy.on:
        return {own: train_many(requests, callbacks)}
    return train_jobs(longest, jobs, callbacks, [own, *stops])


def _outcome(
    request: RunRequest, callbacks: Sequence[AnyCallback], *, resume: bool = False
) -> Outcome:
    if resume and _has_ended(request):
        return reread(request)
    begun = resume and request.folder is not None and (request.folder / "settings.json").exists()
    if resume and not begun:
        _discard(request)
    try:
        return train_run(request, callbacks, resume=begun)
    except DivergedError as error:
        return error


def reread(request: RunRequest) -> Outcome:
    """What a run ended with, from its folder."""
    assert request.folder is not None
    summary = RunFolder.open(request.folder).summary()
    if summary.get("status") == "diverged":
        return DivergedError(f"run {request.folder} diverged", "see its report")
    # What is built in the file says itself; code has been named in the spec.
    loss: Any = request.spec.loss
    if isinstance(loss, str):
        loss = named_loss(loss, request.federation.task) if is_code_name(loss) else None
    network: Any = request.spec.model
    if isinstance(network, ModelSettings) and network.own_code is None:
        network = None
    return Run.load(request.folder, network, loss)


def _has_ended(request: RunRequest) -> bool:
    return request.folder is not None and RunFolder(request.folder).has_ended()


def _discard(request: RunRequest) -> None:
    """Remove what an interrupted run has left, unless a process still trains there."""
    if request.folder is not None and request.folder.exists():
        with RunFolder(request.folder).locked():
            shutil.rmtree(request.folder)


def train_jobs(
    requests: Sequence[RunRequest],
    jobs: Sequence[Job],
    callbacks: Sequence[AnyCallback],
    stops: Sequence[int] = (),
) -> dict[int, list[Outcome]]:
    """All jobs at once, with outcomes after their own rounds and at the stops before.

    Args:
        requests: what they were prepared from.
        jobs: from `jobs_together`.
        callbacks: told of every round, with the numbers of the first run.
        stops: further numbers of rounds.
    """
    if reason := why_apart(jobs):
        raise SettingError(f"these cannot be trained together: {reason}", "train them one by one")
    first = jobs[0]
    for job in jobs:  # values can be looked at only before they are mapped over
        if job.algorithm.prior is not None:
            job.algorithm.prior.checked(job.model.theta)
    algorithms, cohorts = [job.algorithm for job in jobs], [job.cohort for job in jobs]
    engine = LocalEngine(algorithms, cohorts, first.layout, uplink=first.uplink)
    identities, folders = [], []
    for request, job in zip(requests, jobs, strict=True):
        identity = {**identify(job, request.origin), "together": len(jobs)}
        about = describe(job.federation)
        folder = RunFolder.create(request.folder, identity, about) if request.folder else None
        identities.append(identity)
        folders.append(folder)
    before = sorted(set(stops) - {first.training.rounds})
    with ExitStack() as contexts:
        contexts.enter_context(machine(first.layout.execution))
        for folder in folders:
            if folder is not None:
                contexts.enter_context(folder.locked())
        listeners = Callbacks(callbacks)
        return RoundLoop(jobs, identities, folders, engine, listeners, stops=before).run()


def jobs_together(requests: Sequence[RunRequest]) -> list[Job] | None:
    """All runs as jobs to train together, or None where one after the other is the way.

    Convolutions on a CPU gain nothing from it: their chunks fill its caches already. Nor can it be
    where all of them together do not fit the memory; one may.
    """
    if len(requests) < 2:
        return None
    for each in requests:
        prior = each.spec.prior
        if prior.ties and prior.known_strength is None:  # a λ for each
            return None
        if prior.teaches:  # asked before each run, whose folder keeps what it said
            return None
        if each.spec.importance != "none":  # which is stored by a run alone
            return None
    jobs: list[Job] = []
    for each in requests:
        layout = jobs[0].layout if jobs else None
        try:
            job = prepare(
                each.spec,
                each.federation,
                scaling=each.scaling,
                repeats=len(requests),
                layout=layout,
            )
        except MemoryBudgetError:
            return None
        jobs.append(replace(job, metrics=each.metrics))
        first = jobs[0]
        trained = first.model if first.features is None else first.features.network
        slow = first.layout.execution.device == "cpu" and convolves(trained)
        if slow or why_apart(jobs) is not None:
            return None
    return jobs


def why_apart(jobs: Sequence[Job]) -> str | None:
    """Why jobs cannot be trained together, or None if they can."""
    first = jobs[0].spec
    if jobs[0].layout.execution.path != "batched":
        return "nodes are computed one by one"
    if first.participation.fraction < 1 or first.participation.lost > 0:
        return "not all nodes are counted in every round"
    if first.uplink.privacy.dp == "central":
        return "the platform draws noise for the sum of each"
    if first.training.patience is not None:
        return "each may stop early"
    if first.uplink.secure_aggregation:
        return "secure aggregation is for fleets"
    for job in jobs[1:]:
        mine, theirs = job.spec.training, first.training
        if mine.rounds != theirs.rounds:
            return "they run for different numbers of rounds"
        if (mine.evaluate_every, mine.evaluation_steps, mine.decide) != (
            theirs.evaluate_every,
            theirs.evaluation_steps,
            theirs.decide,
        ):
            return "their targets are evaluated at different times or in different ways"
        if mine.patience is not None:
            return "each may stop early"
        for name in ("loss", "augmentation", "participation", "execution"):
            if getattr(job.spec, name) != getattr(first, name):
                return f"they differ in {name}"
        if tuple(job.metrics) != tuple(jobs[0].metrics):
            return "they have different metrics"
        if job.federation.task.local_labels != jobs[0].federation.task.local_labels:
            return "only some have labels that are local to a node"
        shapes = [{n: leaf.shape for n, leaf in j.model.theta.items()} for j in (job, jobs[0])]
        if repr(job.spec.model) != repr(first.model) or shapes[0] != shapes[1]:
            return "they have different networks"
        if isinstance(job.loss, Balanced) and job.loss != jobs[0].loss:
            return "their classes have different weights"
        if job.head != jobs[0].head:
            return "they adapt different parameters"
        if job.uplink != first.uplink:
            return "their contributions are changed in different ways on their way"
        if len(job.federation.sources) != len(jobs[0].federation.sources):
            return "they have different numbers of source nodes"
        if differs := what_differs(first.algorithm, job.algorithm):
            return f"their algorithms differ in {differs}"
        constants, others = job.model.constants, jobs[0].model.constants
        if not all(torch.equal(constants[name], others[name]) for name in others):
            return "their models have different frozen parts"
    return None
