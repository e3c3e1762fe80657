"""A finished or interrupted run, opened again: its settings, its model and its own nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.toml_files import Table, merged
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DataError, RunFolderError, SettingError
from fedmeta.core.older_settings import as_begun
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.core.user_code import refuse_code
from fedmeta.data import Pool, load
from fedmeta.data.encoding import model_encoding
from fedmeta.data.federation import Federation
from fedmeta.data.loading import read_own, without_gaps
from fedmeta.data.readers.table import is_table
from fedmeta.data.settings import DataSettings
from fedmeta.fleet.plan import targets_of
from fedmeta.models.functional import check_on_samples
from fedmeta.models.losses import check_loss, named_loss, squared_error
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.studies.sequences.reopening import in_sequence, task_federation
from fedmeta.training.resume import federation_digest


def stored_table(folder: RunFolder, given: Mapping[str, Any]) -> Table:
    """The settings table a run was started with, with what was typed now on top.

    Code of the user's own (a model, an algorithm, a loss) is not loaded because a file names it: it
    has to be named again.
    """
    stored = folder.settings()
    origin = stored.get("origin") or {}
    tables = (stored, stored.get("settings"), origin, origin.get("table", {}))
    if not all(isinstance(each, Mapping) for each in tables):
        raise RunFolderError(f"{folder.path}/settings.json is damaged", "restore the file")
    if "table" not in origin:
        raise RunFolderError(
            f"run {folder.path} was started from Python", "open it from Python, with its own data"
        )
    table: Table = dict(origin["table"])
    refuse_code(table, given, folder.path)
    algorithm = str(table.get("algorithm", ADMMFedMeta.name))
    return merged([as_begun(stored.get("settings") or {}, algorithm), table, given])


def stored_part(folder: RunFolder, name: str) -> Table:
    """One table of the settings that a run was made with: "data", "training" or "execution"."""
    parts = folder.settings().get("settings")
    part = parts.get(name) if isinstance(parts, Mapping) else None
    if not isinstance(part, Mapping):
        raise RunFolderError(f"{folder.path}/settings.json is damaged", "restore the file")
    return dict(part)


def own_federation(
    folder: RunFolder, precise: int | None = None, *, sources: bool = False
) -> Federation:
    """The nodes that a run was made with, from its data once more; never any others.

    Of a fleet's run these are the targets alone: the source nodes' samples are on their edges.

    Args:
        folder: of the run.
        precise: draw precise sets of this size instead of the run's, which changes nothing else.
        sources: whether the samples of source nodes are needed.
    """
    if (targets := targets_of(folder.path)) is not None:
        if sources:
            raise RunFolderError(
                f"the samples of the source nodes of run {folder.path} are on the edges of a fleet",
                "importance can be had there: fedmeta platform --importance fisher",
            )
        if precise is not None:
            raise SettingError(
                f"{folder.path} is a fleet's run, whose precise sets are drawn at its start",
                "start the fleet with --precise",
            )
        return targets
    data = stored_part(folder, "data")
    training = deserialize(TrainingSettings, stored_part(folder, "training"), "training")
    remedy = "put them back as they were, or open the run from Python"
    try:
        settings = deserialize(DataSettings, data, "data")
        of_sequence = in_sequence(folder.path)
        federation = task_federation(folder.path) if of_sequence else load(settings, training.seed)
    except (DataError, SettingError) as error:
        raise RunFolderError(
            f"the data of run {folder.path} cannot be read again from {Path.cwd()} "
            f"({error.problem})",
            remedy,
        ) from error
    if federation_digest(federation) != folder.settings().get("federation"):
        raise RunFolderError(
            f"the data of run {folder.path} have changed, or it was started from Python with data "
            "of its own",
            remedy,
        )
    if precise is None:
        return federation
    if of_sequence:
        raise SettingError(
            f"{folder.path} is a task of a sequence, whose precise sets are drawn for all tasks",
            "run the sequence with --precise",
        )
    return load(replace(settings, precise=precise), training.seed)


def samples_for(model: MetaModel, path: str, label: str | None) -> Pool:
    """A device's labelled samples in a file, read as those were that a model was trained on.

    Args:
        model: a table's columns, categories and means are the model's.
        path: of the file.
        label: name of the label column or array; None: as in training.
    """
    encoding = model_encoding(model.about)
    known = encoding.label if encoding is not None and is_table(Path(path)) else None
    calling = model.network.calling
    parts = None if calling is None else calling.parts
    pool = read_own(path, model.task.kind, label or known, encoding=encoding, parts=parts)
    return without_gaps(pool, ())


def open_model(path: Path, typed: Mapping[str, Any] | None = None) -> MetaModel:
    """The meta-model of a run folder or model file.

    Args:
        path: of either.
        typed: `model`, `backbone` and `loss`: code of the user's own that was named again.
    """
    network, backbone, loss = ((typed or {}).get(name) for name in ("model", "backbone", "loss"))
    named = ModelSettings(network or "auto", backbone=backbone) if network or backbone else None
    if loss is None:
        model = MetaModel.load(path, named)
    else:  # which one a name means depends on the task, so on what the file says
        model = MetaModel.load(path, named, squared_error)
        model = replace(model, loss=named_loss(loss, model.task))
    if named or loss:  # code that was named again may be another than it was: does it still fit?
        fitted, task = replace(model.network, theta=model.theta), model.task
        some = next(iter(model.theta.values()))
        inputs = model.scaled(np.zeros((2, *model.input_shape)))
        check_on_samples(fitted, inputs, task.outputs)
        values = torch.zeros(2, task.outputs).to(some)
        labels = torch.zeros(2).long() if task.class_names else values
        check_loss(model.loss, fitted, inputs, labels)
    return model
