"""ADMM-FedMeta that collects path importance while it trains: two trees on the platform."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath

import torch

from fedmeta import checkpoints, tree
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.algorithms.base import Contribution, Fleet, Metrics, PlatformState, mean_update
from fedmeta.errors import RunFolderError, SettingError
from fedmeta.regularizers import Path, path_importance, path_start, path_step
from fedmeta.step_sizes import split
from fedmeta.storage import read_tensors
from fedmeta.tree import Tree

_WORK, _MOVED = "path-work", "path-moved"


@dataclass(frozen=True)
class PathKeeping(ADMMFedMeta):
    """The same training, bit for bit, with ω = −Σ_t g_t ⊙ Δθ_t and Σ_t Δθ_t kept beside it.

    g_t = −Σy_i is the meta-gradient that the nodes sent in round t, without the pull of a prior:
    with a fixed ρ where the round began. Under "auto" a step may be taken back, so the path leads
    from one accepted θ to the next, and g_t is taken where it arrives, when that is known. Both
    trees are part of the platform's state, so they are in every checkpoint.

    Args:
        as `ADMMFedMeta`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule == "stale":
            raise SettingError(
                'importance is "path", but with the rule "stale" the platform has no Σy_i',
                'use the rule "participants", or importance "fisher"',
            )

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """The state of the training, and an empty path."""
        return _with_path(super().init(theta, fleet), path_start(theta))

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """The training's step, and the path one round further."""
        path = Path(state.memory[_WORK], state.memory[_MOVED])
        after, metrics = super().platform_step(state, total, fleet)
        if self.automatic:
            moved = split(tree.subtract(after.memory["accepted"], state.memory["accepted"]))[0]
            duals = split(mean_update(total))[0]  # anything, not a number even, if taken back
            duals = {n: torch.where(moved[n] == 0, 0.0, y) for n, y in duals.items()}
        else:
            moved = tree.subtract(after.theta, state.theta)
            duals = split(after.memory["duals"])[0]
        return _with_path(after, path_step(path, tree.scale(-1.0, duals), moved)), metrics


def _with_path(state: PlatformState, path: Path) -> PlatformState:
    return PlatformState(state.theta, {**state.memory, _WORK: path.work, _MOVED: path.moved})


def importance_of_path(folder: FilePath) -> Tree:
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
        for slot in (_WORK, _MOVED)
    )
    if not work:
        raise RunFolderError(
            f"run {folder} did not keep the path of its training",
            "train it with --importance path, or use importance of the kind fisher",
        )
    return path_importance(Path(work, moved))
