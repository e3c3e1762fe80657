"""The round loop, the same for every algorithm: metrics, checkpoints and callbacks around it."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from fedmeta import checkpoints, tree
from fedmeta.algorithms.base import Algorithm, PlatformState
from fedmeta.checkpoints import Checkpoint
from fedmeta.data.description import describe
from fedmeta.data.federation import Federation
from fedmeta.data.packing import pack
from fedmeta.data.scaling import Scaling, fit_scaling
from fedmeta.engines.execution import Execution, machine
from fedmeta.engines.local import Layout, LocalEngine, lay_out
from fedmeta.errors import DataError, DivergedError, RunFolderError, require, require_whole
from fedmeta.evaluation import Evaluation, evaluate, metric_name
from fedmeta.functional import FunctionalModel, check_on_samples, functionalise
from fedmeta.losses import Loss, check_loss, named_loss
from fedmeta.meta_model import MetaModel, check_same_tensors
from fedmeta.models import ModelSettings, build
from fedmeta.participation import Participation
from fedmeta.plain import from_plain, to_plain
from fedmeta.resuming import check_same_run, federation_digest, start_digest, stored_run
from fedmeta.run_folder import Record, RunFolder, versions
from fedmeta.tree import Tree


@dataclass(frozen=True)
class TrainingSettings:
    """How long to train, and how often to look and to save.

    Args:
        rounds: T ≥ 0, platform updates.
        seed: of everything that is drawn.
        evaluate_every: rounds between evaluations on the targets; 0: only after the last round.
        evaluation_steps: numbers of adaptation steps to evaluate after, besides 0 and the
            adaptation's own.
        checkpoint_every: rounds between checkpoints.
        keep_checkpoints: how many of the newest stay on disk.
        patience: stop when the loss has not fallen for that many rounds; None: never.
    """

    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 10
    evaluation_steps: tuple[int, ...] = (0, 1, 5)
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    patience: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "evaluation_steps", tuple(self.evaluation_steps))
        require_whole("rounds", self.rounds, 0)
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2⁶³ − 1")
        require(self.evaluate_every >= 0, "evaluate_every", self.evaluate_every, "0 or more")
        for name in ("checkpoint_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number ≥ 1")
        require(
            len(self.evaluation_steps) > 0 and min(self.evaluation_steps) >= 0,
            "evaluation_steps",
            self.evaluation_steps,
            "whole numbers of at least 0, e.g. [0, 1, 5]",
        )
        require(self.patience is None or self.patience >= 1, "patience", self.patience, "1 or more")

    def stops(self, history: Sequence[Record]) -> bool:
        """Whether the loss has not fallen for `patience` rounds (judged on sources alone)."""
        if self.patience is None:
            return False
        losses = [loss for record in history if (loss := loss_of(record)) is not None]
        if len(losses) <= self.patience:
            return False
        return min(losses[-self.patience :]) >= min(losses[: -self.patience])


class Callback(Protocol):
    """What may be told of a run while it goes on; subclass it and override what is needed."""

    def on_start(self, first_round: int, rounds: int) -> None:
        """Before the first round (`first_round` > 1 when a run is resumed)."""

    def on_round(self, record: Record) -> None:
        """After every round, with what was logged."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """When the run has ended, however it did."""


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


@dataclass(frozen=True, eq=False)
class Job:
    """A run with everything resolved: what to train on what, and how it is laid out."""

    federation: Federation
    model: FunctionalModel
    algorithm: Algorithm
    training: TrainingSettings
    loss: Loss
    scaling: Scaling
    layout: Layout
    participation: Participation
    settings: Mapping[str, Any]

    def engine(self) -> LocalEngine:
        """The engine of this job."""
        return LocalEngine(
            self.algorithm,
            self.federation,
            self.scaling,
            self.layout,
            self.participation,
            self.training.seed,
        )

    def evaluate(self, state: PlatformState) -> Evaluation | None:
        """The targets under the current model; None if there are none."""
        rule = self.algorithm.adaptation(state)
        if not self.federation.targets:
            return None
        return evaluate(
            self.layout,
            state.theta,
            rule,
            (0, *self.training.evaluation_steps, rule.steps),
            self.federation,
            self.federation.targets,
            self.scaling,
            self.training.seed,
        )

    def meta_model(self, state: PlatformState, run_id: str) -> MetaModel:
        """The artefact that a device needs, on the CPU wherever it was trained."""
        execution = self.layout.execution
        about = {
            "network": self.settings["model"],
            "loss": self.settings["loss"],
            "features": list(self.federation.features),
            "run": run_id,
        }
        return MetaModel(
            self.model.to(torch.device("cpu"), execution.torch_dtype),
            {name: leaf.cpu() for name, leaf in state.theta.items()},
            self.scaling,
            self.federation.task,
            self.loss,
            self.algorithm.adaptation(state),
            self.federation.inputs.shape[1:],
            about,
        )


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
    initial: Tree | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    about_data: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
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
        initial: parameters to start from instead of the model's own.
        folder: where the run is kept; None keeps it in memory only.
        resume: continue the run in `folder` from its newest checkpoint.
        callbacks: told of every round.
        about_data: plain description of where the data came from, stored with the run.
        origin: the settings table the run was built from, stored so that it can be built again.

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
        initial=initial,
        about_data=about_data,
    )
    identity = {
        "id": stored["id"] if stored else secrets.token_hex(8),
        "created": stored["created"] if stored else _now(),
        "versions": versions(),
        "seed": training.seed,
        "federation": federation_digest(federation),
        "start": start_digest(job.model, job.scaling),
        "settings": job.settings,
        "origin": dict(origin or (stored or {}).get("origin") or {}),
    }
    if stored is not None and opened is not None:
        check_same_run(opened, stored, identity)
    elif folder is not None:
        opened = RunFolder.create(Path(folder), identity, describe(federation))
    with machine(job.layout.execution), opened.held() if opened else nullcontext():
        return _loop(job, identity, opened, resume, callbacks)


def prepare(
    federation: Federation,
    model: nn.Module | ModelSettings,
    algorithm: Algorithm,
    training: TrainingSettings,
    *,
    loss: str | Loss = "auto",
    scaling: Scaling | None = None,
    execution: Execution = Execution(),
    participation: Participation = Participation(),
    initial: Tree | None = None,
    about_data: Mapping[str, Any] | None = None,
) -> Job:
    """Check that everything fits together and resolve what was left open. See `train`."""
    if not federation.sources:
        raise DataError(f"{federation.name} has no source nodes", "lower target_share")
    if federation.task.kind == "classification" and federation.task.outputs < 2:
        raise DataError(
            f"all samples of {federation.name} are of one class",
            "give at least two classes, or check the label column",
        )
    scaling = scaling or fit_scaling(federation)
    task, shape = federation.task, federation.inputs.shape[1:]
    loss_name = loss if isinstance(loss, str) else to_plain(loss)
    function = named_loss(loss, task) if isinstance(loss, str) else loss
    if isinstance(model, ModelSettings):
        about_model = to_plain(model)
        model = build(model, shape, task.outputs, training.seed)
    else:
        about_model = {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
    network = functionalise(model).to(execution.torch_device, execution.torch_dtype)
    if initial is not None:
        check_same_tensors(network.theta, initial, "the initial model")
        like = network.theta
        network = replace(network, theta={n: initial[n].to(leaf) for n, leaf in like.items()})
    few = pack(federation, federation.sources[:1], scaling, execution.torch_dtype)
    inputs = torch.cat([few.support.inputs[0], few.query.inputs[0]])[:4]
    check_on_samples(network, inputs.to(execution.torch_device), task.outputs)
    labels = torch.cat([few.support.labels[0], few.query.labels[0]])[:4]
    check_loss(function, network, inputs.to(execution.torch_device), labels)
    with machine(execution):
        layout = lay_out(execution, network, function, federation, scaling, algorithm)
    settings = {
        "data": dict(about_data or {"name": federation.name}),
        "model": about_model,
        "algorithm": {"name": algorithm.name, **to_plain(algorithm)},
        "training": to_plain(training),
        "loss": loss_name,
        "execution": to_plain(layout.execution),
        "participation": to_plain(participation),
    }
    return Job(
        federation, network, algorithm, training, function, scaling, layout, participation, settings
    )


def _loop(
    job: Job,
    identity: Mapping[str, Any],
    folder: RunFolder | None,
    resume: bool,
    callbacks: Sequence[Callback],
) -> Run:
    training, engine = job.training, job.engine()
    state, nodes = engine.start(job.model.theta)
    history: list[Record] = []
    done = 0
    if resume and folder is not None:
        folder.sweep()
        if saved := checkpoints.rounds(folder.checkpoints):
            point = checkpoints.load(folder.checkpoints, saved[-1], Checkpoint(0, state, nodes))
            done, state, nodes = point.round, point.state, point.nodes
        if done > training.rounds:
            raise RunFolderError(
                f"run {folder.path} has done {done} rounds already, more than {training.rounds}",
                "resume it with a larger --rounds",
            )
        history = folder.rewind(done)
        if done < training.rounds:
            folder.reopen(identity)
    for callback in callbacks:
        callback.on_start(done + 1, training.rounds)
    status, evaluation = "finished", None
    for number in range(done + 1, training.rounds + 1):
        if training.stops(history):
            status, evaluation = "stopped early", None
            break
        started = time.perf_counter()
        result = engine.round(state, nodes, number)
        record: Record = {"round": number, **result.metrics}
        if not _is_finite(record, result.state):
            _end(job, identity, folder, history, state, None, "diverged", callbacks)
            raise _diverged(number, job.algorithm, folder)
        state, nodes = result.state, result.nodes
        last = number == training.rounds
        if last or (training.evaluate_every and number % training.evaluate_every == 0):
            evaluation = job.evaluate(state)
            if evaluation is not None:
                record["target"] = {s: row["mean"] for s, row in evaluation.summary().items()}
        record["seconds"] = time.perf_counter() - started
        history.append(record)
        if folder is not None:
            folder.append(record)
            if last or number % training.checkpoint_every == 0:
                point = Checkpoint(number, state, nodes)
                checkpoints.save(folder.checkpoints, point, training.keep_checkpoints)
        for callback in callbacks:
            callback.on_round(record)
    meta_model = job.meta_model(state, identity["id"])
    if folder is not None:
        meta_model.save(folder.model)
    evaluation = evaluation or job.evaluate(state)
    rule = job.algorithm.adaptation(state)
    blown = evaluation is not None and not evaluation.is_finite(rule.steps)
    status = "diverged" if blown else status
    summary = _end(job, identity, folder, history, state, evaluation, status, callbacks)
    if blown:
        raise DivergedError(
            f"training is done, but after {rule.steps} adaptation steps of size "
            f"{rule.step_size:g} the loss of a target node is no longer finite",
            "lower the inner step size",
        )
    path = None if folder is None else folder.path
    return Run(meta_model, summary, history, evaluation, path)


def _end(
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
    cost = gradient_evaluations(job.algorithm, job.federation)
    counted = sum(record["counted"] for record in history) / len(job.federation.sources)
    summary = {
        "status": status,
        "algorithm": job.algorithm.name,
        "rounds": rounds,
        "metric": metric_name(job.federation.task),
        "adaptation_steps": job.algorithm.adaptation(state).steps,
        "target_metric": evaluation.summary() if evaluation else {},
        "targets": evaluation.per_node() if evaluation else [],
        "last_round": {k: v for k, v in last.items() if k not in ("round", "seconds", "target")},
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


def loss_of(record: Record) -> float | None:
    """A round's training loss: the meta-loss, or the local loss of methods without one."""
    loss = record.get("meta_loss", record.get("local_loss"))
    return None if loss is None else float(loss)


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


def _is_finite(record: Record, state: PlatformState) -> bool:
    numbers = (value for value in record.values() if isinstance(value, float))
    return all(math.isfinite(value) for value in numbers) and tree.is_finite(state.theta)


def _diverged(number: int, algorithm: Algorithm, folder: RunFolder | None) -> DivergedError:
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
