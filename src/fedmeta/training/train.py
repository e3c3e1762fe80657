"""Training: a run, or many at once where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedmeta.algorithms import ADMMFedMeta, Algorithm
from fedmeta.algorithms.algorithm import with_prior
from fedmeta.config.execution import Execution
from fedmeta.config.spec import Importance, RunSpec, tied
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError, MemoryBudgetError, RunFolderError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.core.tree import Tree
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.federation import Federation, describe
from fedmeta.data.loading import load
from fedmeta.data.scaling import Scaling
from fedmeta.data.settings import DataSettings
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.engine.ranks import current
from fedmeta.engine.resolution import convolves
from fedmeta.engine.stacked_priors import what_differs
from fedmeta.models.losses import Loss
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import PriorSettings
from fedmeta.training.callbacks import Callback, Callbacks, RoundFunction
from fedmeta.training.ending import identify
from fedmeta.training.job import Job, prepare, scaling_of
from fedmeta.training.loop import Engine, RoundLoop
from fedmeta.training.prior_strength import balanced
from fedmeta.training.resume import check_same_run, stored_run
from fedmeta.training.run import Outcome, Run
from fedmeta.training.run_importance import store_importance
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

AnyCallback = Callback | RoundFunction


@dataclass(frozen=True, eq=False)
class RunRequest:
    """One run to be trained.

    Args:
        spec: what it is.
        federation: the nodes and their samples.
        scaling: of the inputs; None: as the spec says.
        folder: where the run is kept; None keeps it in memory.
        origin: the settings table it was built from, kept with the run.
    """

    spec: RunSpec
    federation: Federation
    scaling: Scaling | None = None
    folder: Path | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def lasting(self, rounds: int) -> RunRequest:
        """The same for another number of rounds, kept in memory."""
        return replace(self, spec=self.spec.replaced(rounds=rounds), folder=None)


def train(
    federation: Federation | DataSettings,
    model: nn.Module | ModelSettings = ModelSettings(),
    algorithm: Algorithm = ADMMFedMeta(),
    training: TrainingSettings = TrainingSettings(),
    *,
    rounds: int | None = None,
    seed: int | None = None,
    loss: str | Loss = "auto",
    execution: Execution = Execution(),
    participation: Participation = Participation(),
    uplink: Uplink = Uplink(),
    augmentation: Augmentation = Augmentation(),
    prior: PriorSettings = PriorSettings(),
    start: str | Tree | None = None,
    importance: Importance = "none",
    scaling: Scaling | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[AnyCallback] = (),
) -> Run:
    """Train a meta-model on the source nodes and evaluate it on the targets.

    Args:
        federation: the nodes and their samples, or settings of data to load.
        model: any `nn.Module` without batch-coupled layers, or settings of a built-in network.
        algorithm: `ADMMFedMeta`, `FedAvg`, … or your own.
        training: rounds, seed, how often to evaluate and to save.
        rounds, seed: the same two without writing out `TrainingSettings`.
        loss: "auto", "cross-entropy", "squared-error", or a callable (outputs, labels) → losses.
        execution: device, dtype, path, memory budget, threads.
        participation: who is counted in a round.
        uplink: what happens to contributions on their way: guard, privacy, compression.
        augmentation: random flips and shifts of the source nodes' images.
        prior: the earlier model that the algorithm's prior is read from.
        start: parameters to start from instead of the model's own: a tree, a run or a file.
        importance: "fisher" or "path", to be stored in the folder for later tasks.
        scaling: of the inputs; None: per feature, from the source nodes.
        folder: where the run is kept; None keeps it in memory only.
        resume: continue the run in `folder` from its newest checkpoint.
        callbacks: told of every round; plain functions will do, see `Callback`.

    Raises:
        DivergedError: when a loss or parameter stops being finite; the last checkpoint stays.

    Example:
        >>> from fedmeta.algorithms import FedAvg
        >>> from fedmeta.data import DataSettings, load
        >>> federation = load(DataSettings("sinusoid", nodes=10), seed=0)
        >>> run = train(federation, ModelSettings("mlp"), FedAvg(), rounds=2)
        >>> len(run.history), run.summary["metric"]
        (2, 'mse')
    """
    if not isinstance(algorithm, Algorithm):
        raise SettingError(
            f"algorithm is {algorithm!r}", "give an object, such as fedmeta.FedAvg(), not a name"
        )
    spec = RunSpec(
        data=federation if isinstance(federation, DataSettings) else None,
        model=model,
        algorithm=algorithm,
        training=training,
        execution=execution,
        participation=participation,
        augmentation=augmentation,
        uplink=uplink,
        prior=prior,
        loss=loss,
        start=start,
        importance=importance,
    )
    given = {"rounds": rounds, "seed": seed}
    spec = spec.replaced(**{name: value for name, value in given.items() if value is not None})
    if isinstance(federation, DataSettings):
        federation = load(federation, spec.training.seed)
    place = None if folder is None else Path(folder)
    return train_run(RunRequest(spec, federation, scaling, place), callbacks, resume=resume)


def train_spec(
    spec: RunSpec,
    federation: Federation | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[AnyCallback] = (),
) -> Run:
    """Train what a description of a run says.

    Args:
        spec: the description.
        federation: the nodes and their samples; None: loaded as the spec says.
        folder, resume, callbacks: see `train`.

    Example:
        >>> table = {"data": {"name": "sinusoid", "nodes": 10}, "training": {"rounds": 2}}
        >>> len(train_spec(RunSpec.from_dict(table)).history)
        2
    """
    nodes = load(spec.data_settings, spec.training.seed) if federation is None else federation
    place = None if folder is None else Path(folder)
    return train_run(RunRequest(spec, nodes, None, place), callbacks, resume=resume)


def train_run(
    request: RunRequest,
    callbacks: Sequence[AnyCallback] = (),
    *,
    resume: bool = False,
    engine: Callable[[Job], Engine] | None = None,
) -> Run:
    """Train one run by itself; λ = "auto" is found first.

    Args:
        request: what to train.
        callbacks: told of every round.
        resume: continue the run in its folder from its newest checkpoint.
        engine: what runs the rounds of a job; None: the local engine, in this process.

    Raises:
        DivergedError: when a loss or parameter stops being finite; the last checkpoint stays.
    """
    if resume and request.folder is None:
        raise RunFolderError("there is nothing to resume", "give the folder of a run")
    ranks, keeps = current(), request.folder is not None
    spec = with_strength(request.spec, request.federation, callbacks)
    if ranks.size > 1 and spec.execution.path == "measure":
        raise SettingError(
            "path is 'measure', but processes that share the nodes must agree on one",
            'use path "auto", "batched" or "loop"',
        )
    opened = RunFolder.open(request.folder) if resume and request.folder is not None else None
    stored = stored_run(opened) if opened else None
    if stored is not None:  # sums must be laid out as before, or the last bits would differ
        known = deserialize(Execution, stored["settings"]["execution"], "execution")
        spec = replace(spec, execution=known)
    job = prepare(spec, request.federation, scaling=request.scaling)
    identity = identify(job, request.origin, stored)
    if stored is not None and opened is not None:
        check_same_run(opened, stored, identity)
    elif request.folder is not None and ranks.leads:
        opened = RunFolder.create(request.folder, identity, describe(request.federation))
    if not ranks.leads:  # one process writes and talks
        opened, callbacks = None, ()
    with ExitStack() as contexts:
        contexts.enter_context(machine(job.layout.execution))
        if opened is not None:
            contexts.enter_context(opened.locked())
        runner = job.engine(ranks) if engine is None else engine(job)
        listeners = Callbacks(callbacks)
        loop = RoundLoop([job], [identity], [opened], runner, listeners, ranks, saves=keeps)
        (outcome,) = loop.run(resume)[job.training.rounds]
    if isinstance(outcome, DivergedError):
        raise outcome
    if spec.importance != "none" and opened is not None and engine is None:
        store_importance(opened.path, spec.importance, outcome.meta_model, request.federation)
    return outcome


def with_strength(
    spec: RunSpec, federation: Federation, callbacks: Sequence[AnyCallback] = ()
) -> RunSpec:
    """The spec with λ = "auto" replaced by a number, for which a run without it is trained.

    See `fedmeta.training.prior_strength`. Where λ is a number already nothing changes.
    """
    if not spec.prior.ties or spec.prior.strength != "auto":
        return spec
    prior: Any = tied(spec).algorithm.prior
    pilot = replace(
        spec.replaced(evaluate_every=0),
        algorithm=with_prior(spec.algorithm, None),
        prior=PriorSettings(),
        importance="none",
    )
    sources = federation.with_nodes(federation.sources)
    scaled = scaling_of(spec, sources)  # as it will be
    run = train_run(RunRequest(pilot, sources, scaled), callbacks)
    execution = deserialize(Execution, run.summary["settings"]["execution"], "execution")
    found = balanced(prior, run.meta_model, sources, execution, spec.training.seed).strength
    return replace(
        spec,
        algorithm=with_prior(spec.algorithm, replace(prior, strength=found)),
        prior=replace(spec.prior, strength=found),
    )


def train_many(
    specs: Sequence[RunSpec | RunRequest], callbacks: Sequence[AnyCallback] = ()
) -> list[Outcome]:
    """Train every run: all at once where possible, else one after the other.

    Args:
        specs: what to train; where only the description is given, its data are loaded.
        callbacks: told of every round; of the first run's where they are trained at once.

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
    if (jobs := jobs_together(requests)) is not None:
        return train_jobs(requests, jobs, callbacks)[jobs[0].training.rounds]
    return [_outcome(each, callbacks) for each in requests]


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


def _outcome(request: RunRequest, callbacks: Sequence[AnyCallback]) -> Outcome:
    try:
        return train_run(request, callbacks)
    except DivergedError as error:
        return error


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
    prior = requests[0].spec.prior
    if prior.ties and prior.strength == "auto":  # a λ for each
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
        jobs.append(job)
        slow = jobs[0].layout.execution.device == "cpu" and convolves(jobs[0].model)
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
    for job in jobs[1:]:
        mine, theirs = job.spec.training, first.training
        if mine.rounds != theirs.rounds:
            return "they run for different numbers of rounds"
        if (mine.evaluate_every, mine.evaluation_steps) != (
            theirs.evaluate_every,
            theirs.evaluation_steps,
        ):
            return "their targets are evaluated at different times"
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
