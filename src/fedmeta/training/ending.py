"""How a run ends: its model saved and judged, its summary written, or the error it left."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fedmeta.algorithms.algorithm import Algorithm, PlatformState
from fedmeta.core import tree
from fedmeta.core.calibration import Calibration
from fedmeta.core.errors import DivergedError
from fedmeta.core.run_folder import Record, RunFolder
from fedmeta.core.versions import versions
from fedmeta.data.federation import Federation
from fedmeta.evaluation.baseline import baseline
from fedmeta.evaluation.calibrating import calibrate
from fedmeta.evaluation.evaluate import metric_name
from fedmeta.evaluation.majority import majority, majority_note
from fedmeta.evaluation.result import Evaluation
from fedmeta.models.losses import Balanced
from fedmeta.models.meta_model import MetaModel
from fedmeta.training import checkpoints
from fedmeta.training.job import Job
from fedmeta.training.resume import federation_digest, start_digest
from fedmeta.training.run import History, Outcome, Run

_NOT_OF_TRAINING = (
    "round",
    "seconds",
    "target",
    "precise",
    "decided",
    "sources",
)  # of what a round's record holds


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
        "spec": job.spec.to_dict(),
        "head": job.adapted,
        "origin": dict(origin or (stored or {}).get("origin") or {}),
    }


def conclude(
    job: Job,
    identity: Mapping[str, Any],
    folder: RunFolder | None,
    history: History,
    state: PlatformState,
    evaluation: Evaluation | None,
    status: str,
    *,
    calibrates: bool,
) -> tuple[Outcome, dict[str, Any]]:
    """Calibrate and save the meta-model and judge it on the targets; the outcome and its summary.

    Args:
        job, identity, folder, history, state: of the run.
        evaluation: of the targets, where that was done already.
        status: how the run ended.
        calibrates: whether the source nodes are here to count on.
    """
    meta_model = job.meta_model(state, identity["id"])
    if calibrates and not job.uplink.privacy.on:  # counts have no noise
        meta_model = replace(meta_model, calibration=_calibration(job, meta_model))
    if folder is not None:
        meta_model.save(folder.model)
    evaluation = evaluation or job.evaluate(state)
    rule = job.algorithm.adaptation(state)
    blown = evaluation is not None and not evaluation.is_finite(rule.steps)
    status = "diverged" if blown else status
    summary = end(job, identity, folder, history, state, evaluation, status)
    if blown:
        return DivergedError(
            f"training is done, but after {rule.steps} adaptation steps of size "
            f"{rule.step_size:g} the loss of a target node is no longer finite",
            "lower the inner step size",
        ), summary
    path = None if folder is None else folder.path
    return Run(meta_model, summary, history, evaluation, path), summary


def _calibration(job: Job, model: MetaModel) -> Calibration | None:
    """What the source nodes count under the model, where the job has its tensors."""
    there, federation = replace(model, loss=job.loss), job.federation
    if job.features is not None:
        there, federation = job.features.applied(there), job.features.federation
    execution, decides = job.layout.execution, job.training.decide
    return calibrate(there, federation, execution, job.training.seed, decides=decides)


def end(
    job: Job,
    identity: Mapping[str, Any],
    folder: RunFolder | None,
    history: Sequence[Record],
    state: PlatformState,
    evaluation: Evaluation | None,
    status: str,
) -> dict[str, Any]:
    """Write the summary."""
    last = history[-1] if history else {}
    precise = evaluation.precise if evaluation else None
    decided = evaluation.decided_summary() if evaluation else {}
    cost = gradient_evaluations(job.algorithm, job.federation)
    counted = sum(record["counted"] for record in history) / len(job.federation.sources)
    summary = {
        "status": status,
        "algorithm": job.algorithm.name,
        "rounds": len(history),
        "metric": metric_name(job.federation.task),
        "adaptation_steps": job.algorithm.adaptation(state).steps,
        "target_metric": evaluation.summary() if evaluation else {},
        "notes": _notes(job, state, evaluation),
        "precise_metric": precise.summary() if precise else {},
        "own_mean": evaluation.own_mean() if evaluation else {},
        "targets": evaluation.per_node() if evaluation else [],
        **({"decided_metric": decided} if decided else {}),
        "metrics": evaluation.metrics() if evaluation else {},
        "baseline": baseline(job.federation) if evaluation else {},
        **(evaluation.details if evaluation else {}),
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
    return summary


def _notes(job: Job, state: PlatformState, evaluation: Evaluation | None) -> list[str]:
    """What a reader of the result should know."""
    if evaluation is None or evaluation.metric != "accuracy":
        return [*job.notes]
    reached = evaluation.summary()[str(job.algorithm.adaptation(state).steps)]["mean"]
    note = majority_note(majority(job.federation), reached, balanced=isinstance(job.loss, Balanced))
    return [*job.notes, *([] if note is None else [note])]


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
    remedy = algorithm.remedy
    if folder is not None and (saved := checkpoints.rounds(folder.checkpoints)):
        kept = folder.checkpoints / f"round-{saved[-1]:06d}"
        remedy += f" in a new run, which may start from the last good state: --init {kept}"
    return DivergedError(
        f"training diverged in round {number}: a loss or parameter is no longer finite", remedy
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
