"""What a run must have in common with the one it continues: data, settings, starting point."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmeta.core.errors import RunFolderError
from fedmeta.core.run_folder import RunFolder, difference
from fedmeta.core.storage import tensor_bytes
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import Scaling
from fedmeta.models.functional import FunctionalModel


def stored_run(folder: RunFolder) -> dict[str, Any]:
    """The settings of a run to be resumed, with all that resuming looks at."""
    stored = folder.settings()
    settings = stored.get("settings")
    parts = settings if isinstance(settings, Mapping) else {}
    whole = {"id", "created", "federation", "start"} <= {*stored}
    if not whole or not all(isinstance(parts.get(k), Mapping) for k in ("execution", "training")):
        raise RunFolderError(f"{folder.path}/settings.json is damaged", "restore the file")
    return stored


def check_same_run(folder: RunFolder, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """A run may only be resumed as it was begun, though for more rounds."""
    if stored["federation"] != given["federation"]:
        raise RunFolderError(
            f"the data of run {folder.path} have changed since it was started",
            "resume with the data it was started with",
        )

    def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
        training = {k: v for k, v in settings["training"].items() if k != "rounds"}
        return {**settings, "training": training}

    found = difference(comparable(stored["settings"]), comparable(given["settings"]))
    if found is not None:
        raise RunFolderError(
            f"run {folder.path} was started with other settings: {found}",
            "resume with the settings it was started with (only rounds may change)",
        )
    if stored["start"] != given["start"]:
        raise RunFolderError(
            f"run {folder.path} was started from other weights or with another input scaling",
            "resume with the model it was started with",
        )


def start_digest(model: FunctionalModel, scaling: Scaling) -> str:
    """A fingerprint of where training starts: initial parameters, constants, input scaling."""
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
