"""Tasks of a sequence over a fleet for trying: `sequences.run_sequence` takes it as its trainer.

Every task is a run of the fleet. What it takes over from earlier ones is the platform's: a model to
start from, a prior, its importance. Devices hold the samples of the task, and of their own past if
they keep any.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedmeta.config.toml_files import Table, merged
from fedmeta.core import tree
from fedmeta.core.errors import FedmetaError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import write_tensors
from fedmeta.fleet.local_fleet import new_plan, resume_plan, write_shards
from fedmeta.fleet.plan import FILE, FOLDER
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.meta_model import load_theta
from fedmeta.priors import Regularizer, SquaredMahalanobis
from fedmeta.priors.importance import importance_file, read_importance, write_importance
from fedmeta.studies.sequences.carrying import Past, kind_of
from fedmeta.studies.sequences.declaration import TaskSequence
from fedmeta.training.callbacks import Callback
from fedmeta.training.train import RunRequest

Conduct = Callable[[Path, Path, Sequence[Callback]], None]
"""Brings the run in a folder to its end, with the edges whose folders are in another."""


@dataclass(frozen=True)
class FleetTasks:
    """Trains tasks over edges of this machine.

    Args:
        folder: of the sequence; the runs lie below it.
        place: where edges have their folders.
        fleet: how many edges, and how to deal with them.
        conduct: starts platform and edges.
    """

    folder: Path
    place: Path
    fleet: FleetSettings
    conduct: Conduct

    def __call__(
        self,
        sequence: TaskSequence,
        number: int,
        past: Past,
        repeat: RunRequest,
        callbacks: Sequence[Callback],
    ) -> None:
        """Bring the run of one task to its end; Fisher diagonals are added to `past`."""
        assert repeat.folder is not None, "a fleet's runs are kept"
        run = RunFolder(repeat.folder)
        place = self.place / run.path.relative_to(self.folder)
        if not run.has_ended():
            if not (run.path / FOLDER / FILE).exists():  # not planned, or killed while it was
                shutil.rmtree(run.path, ignore_errors=True)
                shutil.rmtree(place, ignore_errors=True)
                targets = write_shards(place, repeat.federation, self.fleet.edges, device)
                table = _table(sequence, number, past, repeat, place)
                new_plan(run.path, table, self.fleet, targets)
            else:
                resume_plan(run.path, sequence.table_of_task(number, repeat.spec.training.seed))
            try:
                self.conduct(run.path, place, callbacks)
            except FedmetaError:
                if not run.has_ended():  # one that diverged has
                    raise
        file = importance_file(run.path, "fisher")
        if file.exists():
            past.diagonals[number] = read_importance(file, load_theta(run.path), "fisher")


def device(node: str) -> str:
    """Where a node lives: what a device has of an earlier task is a node of its own, at its place.

    Example:
        >>> from fedmeta.studies.sequences.drawing import in_task
        >>> device(in_task(0, "hall")), device("hall")
        ('hall', 'hall')
    """
    return re.sub(r"^task-\d+/", "", node)


def _table(
    sequence: TaskSequence, number: int, past: Past, repeat: RunRequest, place: Path
) -> Table:
    """The settings of a task; what it takes over are names of files."""
    training, start = repeat.spec.training, repeat.spec.start
    last = number + 1 == len(sequence.tasks)
    kind = kind_of(sequence.method)
    weighs = kind == "fisher" and sequence.pull > 0 and not last
    own = {"training": {"rounds": training.rounds}, **({"importance": "fisher"} if weighs else {})}
    table = merged([sequence.table_of_task(number, training.seed), own])
    if start is None:
        return table
    assert not isinstance(start, str), "a task starts from the model before it"
    place, first = place.absolute(), past.latest
    table["init"] = str(place / "initial.safetensors")
    replace(first, theta=start).save(table["init"])
    prior: Regularizer | None = repeat.spec.algorithm.prior
    if prior is None:
        return table
    if kind == "generated":
        raise SettingError(
            "inputs are generated where all is one process", "use another method over edges"
        )
    file = place / "prior.safetensors"
    if prior.prior.keys() == first.theta.keys():
        replace(first, theta=prior.prior).save(file)
    else:  # heads of other tasks are left out
        write_tensors(file, prior.prior, {})
    tied: Table = {"model": str(file), "strength": prior.strength, "kind": kind}
    if isinstance(prior, SquaredMahalanobis):
        tied["importance"] = str(place / "importance.safetensors")
        diagonal = tree.scale(2.0, prior.importance)  # A = ½F
        write_importance(Path(tied["importance"]), diagonal, prior.prior, {"kind": "fisher"})
    elif kind == "outputs":
        tied["data"] = str(place / "unlabelled.npz")
        rows = past.drawn.kept(number, sequence.platform)
        np.savez(tied["data"], x=past.drawn.tasks[0].inputs[rows])
    return {**table, "prior": tied}
