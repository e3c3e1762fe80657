"""A teacher is asked once about the platform's samples, and what it says is kept with the run.

    RUN/teacher.safetensors     its answers so far, written after every batch

The samples are fixed, so the answers are: whoever goes on with the run, after a kill or after a
teacher that failed, asks only about what is missing, and trains with the same bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import with_prior
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.storage import read_tensors, seal_again, write_tensors
from fedmeta.data.pool import Array, normalised_inputs
from fedmeta.engine.ranks import Ranks
from fedmeta.models.teachers import Teacher, ask, open_teacher, stored_teacher
from fedmeta.priors import PriorSettings, TeacherKL, raw_samples
from fedmeta.priors.generated import raw_generated
from fedmeta.priors.settings import GENERATED, own_network
from fedmeta.training.job import Job

FILE = "teacher.safetensors"


def taught(job: Job, folder: Path | None = None, ranks: Ranks = Ranks()) -> Job:
    """The job with its teacher's answers as prior; without a teacher it stays as it is.

    Args:
        job: whose description may name a teacher.
        folder: of the run, which keeps the answers; None: they are kept in memory.
        ranks: the processes that share the nodes; the leading one asks.
    """
    spec = job.spec
    settings = spec.prior
    if not settings.teaches or spec.algorithm.prior is not None:
        return job
    task = job.federation.task
    if task.kind != "classification" or task.local_labels:
        raise SettingError(
            "a teacher says probabilities of classes, and this task has none that all nodes share",
            "leave the prior out, or compare parameters",
        )
    assert settings.data is not None  # or it would not teach
    if settings.data == GENERATED:
        assert settings.model is not None  # the settings refuse this
        raw = raw_generated(stored_teacher(Path(settings.model), own_network(spec.model)))
    else:
        raw = raw_samples(Path(settings.data), job.federation.encoding)
    raw = fitting(raw, settings.data, job)
    classes = task.class_names
    answers = torch.zeros(len(raw), len(classes))
    if ranks.leads:
        answers = _answers(settings, spec.model, raw, classes, folder)
    ranks.agree(answers)
    first = next(iter(job.model.theta.values()))
    prior = TeacherKL(
        settings.known_strength or 0.0,
        answers.to(first),
        job.model,
        job.scaling.apply(raw, first.dtype).to(first.device),
        settings.temperature,
    )
    return replace(job, spec=replace(spec, algorithm=with_prior(spec.algorithm, prior)))


def fitting(raw: Array, path: str, job: Job) -> Array:
    """The platform's unlabelled samples, raw, checked to be like those of the nodes."""
    shape = job.federation.inputs.shape[1:]
    if raw.dtype == np.uint8 and raw.ndim in (3, 4) and raw.shape[1:] != shape:
        raw = normalised_inputs(raw)
    if raw.shape[1:] != shape or len(raw) == 0:
        raise DataError(
            f"{path} has {len(raw)} samples of shape {raw.shape[1:]}, the nodes' have {shape}",
            "give the platform samples like those of the nodes (prior.data)",
        )
    if not np.isfinite(raw).all():
        raise DataError(f"{path} has NaN or infinite features", "clean them first")
    return raw


def _answers(
    settings: PriorSettings,
    model: object,
    raw: Array,
    classes: tuple[str, ...],
    folder: Path | None,
) -> Tensor:
    """All answers; what the folder keeps is not asked for again."""
    file = None if folder is None else folder / FILE
    about = hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest()
    known = _kept(file, about, len(raw), len(classes))
    if len(known) == len(raw):
        return known
    named = settings.teacher or settings.model
    assert named is not None  # or it would not teach
    teacher = open_teacher(named, settings.answers, settings.timeout, own_network(model))
    while len(known) < len(raw):
        known = torch.cat([known, _next_batch(teacher, raw[len(known) :], classes)])
        if file is not None:
            write_tensors(file, {"answers": known}, {"inputs": about})
            seal_again(file)
    return known


def _next_batch(teacher: Teacher, raw: Array, classes: tuple[str, ...]) -> Tensor:
    return ask(teacher, np.ascontiguousarray(raw[: teacher.batch], np.float32), classes)


def _kept(file: Path | None, about: str, most: int, classes: int) -> Tensor:
    """The answers that a folder has, if they are to these samples."""
    if file is None or not file.is_file():
        return torch.zeros(0, classes)
    tensors, facts = read_tensors(file, "answers of the teacher")
    found = tensors.get("answers", torch.zeros(0))
    fits = facts.get("inputs") == about and found.ndim == 2 and found.shape[1] == classes
    fits = fits and len(found) <= most and found.dtype == torch.float32
    return found if fits and bool(found.isfinite().all()) else torch.zeros(0, classes)
