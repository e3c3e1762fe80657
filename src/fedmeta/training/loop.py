"""The round loop, the same for every algorithm: metrics, checkpoints and callbacks around it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from fedmeta.algorithms.algorithm import Algorithm, Fleet, NodeState, PlatformState
from fedmeta.core import tree
from fedmeta.core.errors import DivergedError, RunFolderError, SettingError
from fedmeta.core.run_folder import Record, RunFolder, versions
from fedmeta.core.serialization import from_plain
from fedmeta.core.tree import Tree
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.description import describe
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import Scaling
from fedmeta.engine.execution import Execution, machine
from fedmeta.engine.local import RoundResult
from fedmeta.engine.ranks import Ranks, current
from fedmeta.evaluation.evaluate import Evaluation, metric_name
from fedmeta.models.losses import Loss
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.training import checkpoints
from fedmeta.training.checkpoints import Checkpoint
from fedmeta.training.job import Job, TrainingSettings, prepare
from fedmeta.training.resume import check_same_run, federation_digest, start_digest, stored_run
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

_NOT_OF_TRAINING = ("round", "seconds", "target", "precise")  # of what a round's record holds


class Callback(Protocol):
    """What may be told of a run while it goes on; subclass it and override what is needed."""

    def on_start(self, first_round: int, rounds: int) -> None:
        """Before the first round (`first_round` > 1 when a run is resumed)."""

    def on_round(self, record: Record) -> None:
        """After every round, with what was logged."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """When the run has ended, however it did."""


class Engine(Protocol):
    """What runs the rounds of a job: `LocalEngine`, or a fleet of edges."""

    @property
    def fleet(self) -> Fleet:
        """All source nodes."""
        ...

    def start(self, theta: Tree) -> tuple[PlatformState, NodeState]:
        """The states before the first round."""
        ...

    def round(self, state: PlatformState, nodes: NodeState, number: int) -> RoundResult:
        """One round; `nodes` is updated in place."""
        ...

    def notes(self) -> list[str]:
        """What happened since the last look that people should know of."""
        ...


@dataclass(frozen=True, eq=False)
class Run:
    """What training leaves.

    Args:
        meta_model: ready to adapt and predict.
        summary: as in summary.json.
        history: as in metrics.jsonl.
        evaluation: the targets after the last round; None if the federation has none.
        folder: the run folder, if one was asked for.
    """

    meta_model: MetaModel
    summary: Mapping[str, Any]
    history: Sequence[Record]
    evaluation: Evaluation | None
    folder: Path | None


def train(
    federation: Federation,
    model: nn.Module | ModelSettings,
    algorithm: Algorithm,
    training: TrainingSettings = TrainingSettings(),
    *,
    loss: str | Loss = "auto",
    scaling: Scaling | None = None,
    execution: Execution = Execution(),
    participation: Participation = Participation(),
    uplink: Uplink = Uplink(),
    augmentation: Augmentation = Augmentation(),
    initial: Tree | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    about_data: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
    engine: Callable[[Job], Engine] | None = None,
) -> Run:
    """Train a meta-model on the source nodes and evaluate it on the targets.

    Args:
        federation: the nodes and their samples.
        model: any `nn.Module` without batch-coupled layers, or settings of a built-in network.
        algorithm: `ADMMFedMeta`, `FedAvg`, … or your own.
        training: rounds, seed, how often to evaluate and to save.
        loss: "auto", "cross-entropy", "squared-error", or a callable (outputs, labels) → losses.
        scaling: of the inputs; None: per feature, from the source nodes.
        execution: device, dtype, path, memory budget, threads.
        participation: who is counted in a round.
        uplink: what happens to contributions on their way: guard, privacy, compression.
        augmentation: random flips and shifts of the source nodes' images.
        initial: parameters to start from instead of the model's own.
        folder: where the run is kept; None keeps it in memory only.
        resume: continue the run in `folder` from its newest checkpoint.
        callbacks: told of every round.
        about_data: plain description of where the data came from, stored with the run.
        origin: the settings table the run was built from, stored so that it can be built again.
        engine: what runs the rounds of a job; None: the local engine, in this process.

    Raises:
        DivergedError: when a loss or parameter stops being finite; the last checkpoint stays.

    Example:
        >>> from fedmeta.algorithms import FedAvg
        >>> from fedmeta.data import DataSettings, load
        >>> federation = load(DataSettings("sinusoid", nodes=10), seed=0)
        >>> run = train(federation, ModelSettings("mlp"), FedAvg(), TrainingSettings(rounds=2))
        >>> len(run.history), run.summary["metric"]
        (2, 'mse')
    """
    if resume and folder is None:
        raise RunFolderError("there is nothing to resume", "give the folder of a run")
    ranks, keeps = current(), folder is not None
    if ranks.size > 1 and execution.path == "measure":
        raise SettingError(
            "path is 'measure', but processes that share the nodes must agree on one",
            'use path "auto", "batched" or "loop"',
        )
    opened = RunFolder.open(Path(folder)) if resume and folder is not None else None
    stored = stored_run(opened) if opened else None
    if stored is not None:  # sums must be laid out as before, or the last bits would differ
        execution = from_plain(Execution, stored["settings"]["execution"], "execution")
    job = prepare(
        federation,
        model,
        algorithm,
        training,
        loss=loss,
        scaling=scaling,
        execution=execution,
        participation=participation,
        uplink=uplink,
        augmentation=augmentation,
        initial=initial,
        about_data=about_data,
    )
    identity = identify(job, origin, stored)
    if stored is not None and opened is not None:
        check_same_run(opened, stored, identity)
    elif folder is not None and ranks.leads:
        opened = RunFolder.create(Path(folder), identity, describe(federation))
    if not ranks.leads:  # one process writes and talks
        opened, callbacks = None, ()
    with machine(job.layout.execution), opened.locked() if opened else nullcontext():
        runner = job.engine(ranks) if engine is None else engine(job)
        return _loop(job, runner, identity, opened, resume, keeps, ranks, callbacks)


def identify(
    job: Job, origin: Mapping[str, Any] | None = None, stored: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a run is known by: a new number, or those of the stored run that goes on."""
    return {
        "id": stored["id"] if stored else secrets.token_hex(8),
        "created": stored["created"] if stored else _now(),
        "versions": versions(),
        "seed": job.training.seed,
        "federation": federation_digest(job.federation),
        "start": start_digest(job.model, job.scaling),
        "settings": job.settings,
        "origin": dict(origin or (stored or {}).get("origin") or {}),
    }


def _loop(
    job: Job,
    engine: Engine,
    identity: Mapping[str, Any],
    folder: RunFolder | None,
    resume: bool,
    keeps: bool,
    ranks: Ranks,
    callbacks: Sequence[Callback],
) -> Run:
    training = job.training
    state, nodes = engine.start(job.model.theta)
    history: list[Record] = []
    done = 0
    if resume:
        done, state = _restored(job, folder, state, nodes, ranks)
        if folder is not None:
            history = folder.rewind(done)
            if done < training.rounds:
                folder.reopen(identity)
        history = ranks.told(history)  # all must stop in the same round
    for callback in callbacks:
        callback.on_start(done + 1, training.rounds)
    status, evaluation, clock = "finished", None, time.perf_counter()

    def settle(number: int, result: RoundResult, notes: Sequence[str]) -> None:
        """Log a round, whose numbers have arrived by now or are waited for."""
        nonlocal evaluation, clock
        record: Record = {"round": number, **result.metrics}
        if not result.metrics.finite:
            end(job, identity, folder, history, state, None, "diverged", callbacks)
            raise diverged(number, job.algorithm, folder)
        if training.evaluates(number):
            evaluation = job.evaluate(result.state)
            if evaluation is not None:
                record |= evaluation.means()
        if notes:
            record["note"] = "; ".join(notes)
        now = time.perf_counter()
        record["seconds"], clock = now - clock, now
        history.append(record)
        if folder is not None:
            folder.append(record)
        if keeps and training.saves(number):
            everyone = ranks.gathered(result.nodes, engine.fleet.nodes)
            if folder is not None and everyone is not None:
                point = Checkpoint(number, result.state, everyone)
                checkpoints.save(folder.checkpoints, point, training.keep_checkpoints)
        for callback in callbacks:
            callback.on_round(record)

    pending: tuple[int, RoundResult, list[str]] | None = None
    for number in range(done + 1, training.rounds + 1):
        if pending is None and training.stops(history):
            status, evaluation = "stopped early", None
            break
        result = engine.round(state, nodes, number)
        notes = engine.notes()
        if pending is not None:  # the device is busy with the next round meanwhile
            settle(*pending)
        state, nodes, pending = result.state, result.nodes, (number, result, notes)
        if training.looks(number):
            settle(*pending)
            pending = None
    return conclude(job, identity, folder, history, state, evaluation, status, callbacks)


def _restored(
    job: Job, folder: RunFolder | None, state: PlatformState, nodes: NodeState, ranks: Ranks
) -> tuple[int, PlatformState]:
    """The round and platform state of the newest checkpoint; `nodes` is filled from it.

    Only the leading rank has the folder; the others get their share from it.
    """
    done = torch.zeros((), dtype=torch.int64)
    count = len(job.federation.sources)
    like = ranks.gathered(nodes, count)
    everyone: NodeState | None = like
    if folder is not None and like is not None:
        folder.remove_partial_files()
        if saved := checkpoints.rounds(folder.checkpoints):
            point = checkpoints.load(folder.checkpoints, saved[-1], Checkpoint(0, state, like))
            done.fill_(point.round)
            everyone = point.nodes
            # Into the tensors that are there, which have the layout that kernels want.
            for mine, theirs in zip(_trees(state), _trees(point.state), strict=True):
                for name, leaf in mine.items():
                    leaf.copy_(theirs[name])
        if int(done) > job.training.rounds:
            raise RunFolderError(
                f"run {folder.path} has done {done} rounds already, more than "
                f"{job.training.rounds}",
                "resume it with a larger --rounds",
            )
    ranks.agree((done, _trees(state)))
    if int(done) > 0:
        ranks.scatter(everyone, nodes, count)
    return int(done), state


def _trees(state: PlatformState) -> list[Tree]:
    return [state.theta, *state.memory.values()]


def conclude(
    job: Job,
    identity: Mapping[str, Any],
    folder: RunFolder | None,
    history: Sequence[Record],
    state: PlatformState,
    evaluation: Evaluation | None,
    status: str,
    callbacks: Sequence[Callback],
) -> Run:
    """Save the meta-model and judge it on the targets."""
    meta_model = job.meta_model(state, identity["id"])
    if folder is not None:
        meta_model.save(folder.model)
    evaluation = evaluation or job.evaluate(state)
    rule = job.algorithm.adaptation(state)
    blown = evaluation is not None and not evaluation.is_finite(rule.steps)
    status = "diverged" if blown else status
    summary = end(job, identity, folder, history, state, evaluation, status, callbacks)
    if blown:
        raise DivergedError(
            f"training is done, but after {rule.steps} adaptation steps of size "
            f"{rule.step_size:g} the loss of a target node is no longer finite",
            "lower the inner step size",
        )
    path = None if folder is None else folder.path
    return Run(meta_model, summary, history, evaluation, path)


def end(
    job: Job,
    identity: Mapping[str, Any],
    folder: RunFolder | None,
    history: Sequence[Record],
    state: PlatformState,
    evaluation: Evaluation | None,
    status: str,
    callbacks: Sequence[Callback],
) -> dict[str, Any]:
    """Write the summary and tell everyone."""
    rounds = len(history)
    last = history[-1] if history else {}
    precise = evaluation.precise if evaluation else None
    cost = gradient_evaluations(job.algorithm, job.federation)
    counted = sum(record["counted"] for record in history) / len(job.federation.sources)
    summary = {
        "status": status,
        "algorithm": job.algorithm.name,
        "rounds": rounds,
        "metric": metric_name(job.federation.task),
        "adaptation_steps": job.algorithm.adaptation(state).steps,
        "target_metric": evaluation.summary() if evaluation else {},
        "precise_metric": precise.summary() if precise else {},
        "targets": evaluation.per_node() if evaluation else [],
        "last_round": {k: v for k, v in last.items() if k not in _NOT_OF_TRAINING},
        "parameters": tree.size(job.model.theta),
        "gradient_evaluations": cost * counted,
        "bytes_per_node": _traffic(history, len(job.federation.sources)) if cost > 0 else 0.0,
        "seconds": sum(record["seconds"] for record in history),
        "ended": _now(),
        **identity,
    }
    if folder is not None:
        folder.write_summary(summary)
    for callback in callbacks:
        callback.on_end(summary)
    return summary


def gradient_evaluations(algorithm: Algorithm, federation: Federation) -> float:
    """Cost of a round for a node that takes part, in gradients over all of its data.

    Gradients of single samples are counted and divided by the samples held, so a pass over the
    support set alone, or over a mini-batch, counts as its share.
    """
    sources = federation.sources
    work = sum(algorithm.gradients(len(node.support), len(node.query)) for node in sources)
    return work / sum(node.size for node in sources)


def _traffic(history: Sequence[Record], nodes: int) -> float:
    """Bytes sent and received, per node; a node that is not counted in a round sends nothing."""
    sums = ((r.get("bytes_up", 0) + r.get("bytes_down", 0)) * r["counted"] for r in history)
    return float(sum(sums)) / nodes


def diverged(number: int, algorithm: Algorithm, folder: RunFolder | None) -> DivergedError:
    """The error to raise when a round's numbers or parameters are no longer finite."""
    if hasattr(algorithm, "penalty"):
        remedy = "raise the penalty ρ (each doubling halves the step) or lower the inner step size"
    else:
        remedy = "lower the step sizes"
    if folder is not None and (saved := checkpoints.rounds(folder.checkpoints)):
        kept = folder.checkpoints / f"round-{saved[-1]:06d}"
        remedy += f" in a new run, which may start from the last good state: --init {kept}"
    return DivergedError(
        f"training diverged in round {number}: a loss or parameter is no longer finite", remedy
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
