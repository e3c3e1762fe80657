"""The importance that a run leaves for later tasks: estimated, or taken from its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmeta.algorithms.path_importance import MOVED, WORK
from fedmeta.core.errors import RunFolderError, require_choice
from fedmeta.core.storage import read_tensors
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.models.meta_model import MetaModel, check_same_tensors, load_theta
from fedmeta.priors.importance import (
    TrainingPath,
    add_up,
    federated_fisher,
    importance_file,
    path_importance,
    read_importance,
    write_importance,
)
from fedmeta.training import checkpoints


def store_importance(
    run: Path,
    kind: str,
    model: MetaModel,
    federation: Federation,
    device: str = "cpu",
    earlier: Sequence[Path] = (),
) -> Path:
    """Make the importance of a run and put it into its folder.

    Args:
        run: the run folder.
        kind: "fisher", or "path" for a run that kept its path.
        model: the run's meta-model.
        federation: the run's own; the sources are asked for "fisher".
        device: where to compute.
        earlier: runs of earlier tasks, whose stored importance is added: the model is to be held
            for their sake too.

    Returns:
        The file.
    """
    require_choice("importance", kind, ("fisher", "path"))
    own = (
        federated_fisher(model, federation, device) if kind == "fisher" else importance_of_path(run)
    )
    check_same_tensors(model.theta, own, "the path that the run kept")
    parts = [own, *(_stored(each, kind) for each in earlier)]
    file = importance_file(run, kind)
    facts = {"kind": kind, "run": model.about.get("run"), "tasks": len(parts)}
    write_importance(file, add_up(parts), model.theta, facts)
    return file


def _stored(run: Path, kind: str) -> Tree:
    return read_importance(importance_file(run, kind), load_theta(run), kind)


def importance_of_path(folder: Path) -> Tree:
    """Ω of a run that kept its path, from its newest checkpoint.

    Args:
        folder: the run folder.
    """
    saved = checkpoints.rounds(folder / "checkpoints")
    if not saved:
        raise RunFolderError(
            f"run {folder} has no checkpoint to take the path of its training from",
            "train it alone, not with --seeds, or use importance of the kind fisher",
        )
    file = folder / "checkpoints" / f"round-{saved[-1]:06d}" / "state.safetensors"
    tensors, _ = read_tensors(file, "checkpoint")
    work, moved = (
        {
            name.removeprefix(f"memory/{slot}/"): leaf
            for name, leaf in tensors.items()
            if name.startswith(f"memory/{slot}/")
        }
        for slot in (WORK, MOVED)
    )
    if not work:
        raise RunFolderError(
            f"run {folder} did not keep the path of its training",
            "train it with --importance path, or use importance of the kind fisher",
        )
    return path_importance(TrainingPath(work, moved))
