"""Going on with a run: what it must have in common with the one it continues, and its state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedmeta.algorithms.algorithm import NodeState, PlatformState
from fedmeta.config.server_settings import as_stored_now
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import RunFolderError
from fedmeta.core.run_folder import RunFolder, difference
from fedmeta.core.serialization import deserialize
from fedmeta.core.storage import tensor_bytes
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import Scaling
from fedmeta.data.settings import DataSettings
from fedmeta.engine.ranks import Ranks
from fedmeta.models.functional import FunctionalModel
from fedmeta.training import checkpoints
from fedmeta.training.checkpoints import Checkpoint
from fedmeta.training.job import Job
from fedmeta.training.start import scaling_of


def stored_run(folder: RunFolder) -> dict[str, Any]:
    """The settings of a run to be resumed, with all that resuming looks at."""
    stored = folder.settings()
    settings = stored.get("settings")
    parts = settings if isinstance(settings, Mapping) else {}
    whole = {"id", "created", "federation", "start"} <= {*stored}
    tables = ("data", "execution", "training")
    if not whole or not all(isinstance(parts.get(k), Mapping) for k in tables):
        raise RunFolderError(f"{folder.path}/settings.json is damaged", "restore the file")
    return stored


def labels_as_begun(
    spec: RunSpec, federation: Federation, scaling: Scaling | None, stored: Mapping[str, Any]
) -> tuple[RunSpec, Scaling | None]:
    """Spec and scaling of a run that goes on: labels that were not scaled are not scaled now.

    Those of older runs were not, and who goes on with one from Python may not know.

    Args:
        spec, federation, scaling: what is asked for.
        stored: as of `stored_run`.
    """
    if stored["settings"]["data"].get("label_scaling") != "none":
        return spec, scaling
    if spec.data is not None:
        return replace(spec, data=replace(spec.data, label_scaling="none")), scaling
    return spec, scaling or replace(scaling_of(spec, federation), labels=None)


def check_same_run(folder: RunFolder, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """A run may only be resumed as it was begun, though for more rounds."""
    if stored["federation"] != given["federation"]:
        raise RunFolderError(
            f"the data of run {folder.path} have changed since it was started",
            "resume with the data it was started with",
        )

    def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
        training = {k: v for k, v in settings["training"].items() if k != "rounds"}
        data = dict(settings.get("data", {}))
        if "classes_per_node" in data:  # older versions had a number where today may be none
            filled = deserialize(DataSettings, data, "data").classes_of_a_node
            data["classes_per_node"] = filled
        # Execution follows from the rest where nobody asked, so it is named last.
        rest = {k: v for k, v in settings.items() if k != "execution"}
        return {**rest, "training": training, "data": data, "execution": settings["execution"]}

    begun = as_stored_now(stored["settings"])
    found = difference(comparable(begun), comparable(given["settings"]))
    if found is not None:
        raise RunFolderError(
            f"run {folder.path} was started with other settings: {found}",
            "resume with the settings it was started with (only rounds may change)",
        )
    if stored["start"] != given["start"]:
        raise RunFolderError(
            f"run {folder.path} was started from other weights or with another scaling",
            "resume with the model it was started with",
        )


def start_digest(model: FunctionalModel, scaling: Scaling) -> str:
    """A fingerprint of where training starts: initial parameters, constants, scaling."""
    digest = hashlib.sha256()
    for leaves in (model.theta, model.constants, scaling.tensors()):
        digest.update(tensor_bytes(leaves))
    return digest.hexdigest()


def federation_digest(federation: Federation) -> str:
    """A fingerprint of all samples that nodes hold or are judged on, and of whose they are."""
    digest = hashlib.sha256()
    for node in federation.nodes:
        digest.update(f"{node.name}:{node.role}:{len(node.support)}:{len(node.query)};".encode())
        for positions in (node.support, node.query, node.precise):
            digest.update(np.ascontiguousarray(federation.inputs[positions]).tobytes())
            digest.update(np.ascontiguousarray(federation.labels[positions]).tobytes())
    return digest.hexdigest()


def restored(
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
