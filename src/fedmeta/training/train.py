"""Training: a run, or many at once where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedmeta.algorithms import ADMMFedMeta, Algorithm
from fedmeta.algorithms.algorithm import with_prior
from fedmeta.config.execution import Execution
from fedmeta.config.spec import Importance, RunSpec, tied
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError, RunFolderError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.core.tree import Tree
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.federation import Federation, describe
from fedmeta.data.in_memory import federate
from fedmeta.data.loading import load
from fedmeta.data.scaling import Scaling
from fedmeta.data.settings import DataSettings
from fedmeta.engine.machine import machine
from fedmeta.engine.ranks import current
from fedmeta.evaluation.metrics import OwnMetric
from fedmeta.models.losses import Loss
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import PriorSettings
from fedmeta.training.callbacks import Callback, Callbacks, RoundFunction
from fedmeta.training.ending import identify
from fedmeta.training.job import Job, prepare
from fedmeta.training.loop import Engine, RoundLoop
from fedmeta.training.prior_strength import balanced
from fedmeta.training.progress import asked
from fedmeta.training.resume import check_same_run, labels_as_begun, stored_run
from fedmeta.training.run import Run
from fedmeta.training.run_importance import store_importance
from fedmeta.training.start import scaling_of
from fedmeta.training.teaching import taught
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

AnyCallback = Callback | RoundFunction


@dataclass(frozen=True, eq=False)
class RunRequest:
    """One run to be trained.

    Args:
        spec: what it is.
        federation: the nodes and their samples.
        scaling: of inputs and labels; None: as the spec says.
        folder: where the run is kept; None keeps it in memory.
        origin: the settings table it was built from, kept with the run.
        metrics: of one's own, for the final evaluation.
    """

    spec: RunSpec
    federation: Federation
    scaling: Scaling | None = None
    folder: Path | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[OwnMetric] = ()

    def lasting(self, rounds: int) -> RunRequest:
        """The same for another number of rounds, kept in memory."""
        return replace(self, spec=self.spec.replaced(rounds=rounds), folder=None)


def train(
    federation: Federation | DataSettings | Mapping[str, Any],
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
    metrics: Sequence[OwnMetric] = (),
    progress: bool | None = None,
) -> Run:
    """Train a meta-model on the source nodes and evaluate it on the targets.

    Args:
        federation: the nodes and their samples, settings of data to load, or clients: names with
            (inputs, labels) or a `torch.utils.data.Dataset` each, see `federate`.
        model: any `nn.Module` without batch-coupled layers, or settings of a built-in network.
        algorithm: `ADMMFedMeta`, `FedAvg`, … or your own.
        training: rounds, seed, how often to evaluate and to save.
        rounds, seed: the same two without writing out `TrainingSettings`.
        loss: "auto", "cross-entropy", "balanced-cross-entropy", "squared-error", or a callable
            (outputs, labels) → losses.
        execution: device, dtype, path, memory budget, threads.
        participation: who is counted in a round.
        uplink: what happens to contributions on their way: guard, privacy, compression.
        augmentation: random flips and shifts of the source nodes' images.
        prior: the earlier model that the algorithm's prior is read from.
        start: parameters to start from instead of the model's own: a tree, a run or a file.
        importance: "fisher" or "path", to be stored in the folder for later tasks.
        scaling: of inputs and labels; None: per feature and per output, from the source nodes.
        folder: where the run is kept; None keeps it in memory only.
        resume: continue the run in `folder` from its newest checkpoint.
        callbacks: told of every round; plain functions will do, see `Callback`.
        metrics: further ones of your own, for `summary["metrics"]`: functions (labels, outputs) →
            number of one target, named as they are. Of classes, outputs are probabilities.
        progress: whether to show a bar; None: where a person watches, in a terminal or notebook,
            unless $FEDMETA_PROGRESS is "off".

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
    elif not isinstance(federation, Federation):
        federation = federate(federation, seed=spec.training.seed)
    place = None if folder is None else Path(folder)
    request = RunRequest(spec, federation, scaling, place, metrics=metrics)
    told = [*callbacks, *asked(algorithm.name, progress)]
    return train_run(request, told, resume=resume)


def train_spec(
    spec: RunSpec,
    federation: Federation | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[AnyCallback] = (),
    progress: bool | None = None,
) -> Run:
    """Train what a description of a run says.

    Args:
        spec: the description.
        federation: the nodes and their samples; None: loaded as the spec says.
        folder, resume, callbacks, progress: see `train`.

    Example:
        >>> table = {"data": {"name": "sinusoid", "nodes": 10}, "training": {"rounds": 2}}
        >>> len(train_spec(RunSpec.from_dict(table)).history)
        2
    """
    nodes = load(spec.data_settings, spec.training.seed) if federation is None else federation
    place = None if folder is None else Path(folder)
    told = [*callbacks, *asked(spec.algorithm.name, progress)]
    return train_run(RunRequest(spec, nodes, None, place), told, resume=resume)


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
    opened = RunFolder.open(request.folder) if resume and request.folder is not None else None
    stored = stored_run(opened) if opened else None
    spec, scaling = request.spec, request.scaling
    if stored is not None:
        spec, scaling = labels_as_begun(spec, request.federation, scaling, stored)
    spec = with_strength(spec, request.federation, callbacks, scaling)
    if ranks.size > 1 and spec.execution.path == "measure":
        raise SettingError(
            "path is 'measure', but processes that share the nodes must agree on one",
            'use path "auto", "batched" or "loop"',
        )
    if stored is not None:  # sums must be laid out as before, or the last bits would differ
        known = deserialize(Execution, stored["settings"]["execution"], "execution")
        spec = replace(spec, execution=known)
    # Older versions did not trace the head; edges of a fleet always do.
    traced = stored is None or "head" in stored or engine is not None
    job = prepare(spec, request.federation, scaling=scaling, traced=traced)
    job = replace(job, metrics=request.metrics)
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
        job = taught(job, request.folder, ranks)
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
    spec: RunSpec,
    federation: Federation,
    callbacks: Sequence[AnyCallback] = (),
    scaling: Scaling | None = None,
) -> RunSpec:
    """The spec with λ = "auto" replaced by a number, for which a run without it is trained.

    See `fedmeta.training.prior_strength`. Where λ is a number already nothing changes, and where it
    is known beforehand (`PriorSettings.known_strength`) nothing is trained for it.
    """
    if not spec.prior.ties or spec.prior.strength != "auto":
        return spec
    if (known := spec.prior.known_strength) is not None:
        return replace(spec, prior=replace(spec.prior, strength=known))
    prior: Any = tied(spec).algorithm.prior
    pilot = replace(
        spec.replaced(evaluate_every=0),
        algorithm=with_prior(spec.algorithm, None),
        prior=PriorSettings(),
        importance="none",
    )
    sources = federation.with_nodes(federation.sources)
    scaled = scaling or scaling_of(spec, sources)  # as it will be
    run = train_run(RunRequest(pilot, sources, scaled), callbacks)
    execution = deserialize(Execution, run.summary["settings"]["execution"], "execution")
    found = balanced(prior, run.meta_model, sources, execution, spec.training.seed).strength
    return replace(
        spec,
        algorithm=with_prior(spec.algorithm, replace(prior, strength=found)),
        prior=replace(spec.prior, strength=found),
    )
