"""ADMM-FedMeta that collects path importance while it trains: two trees on the platform."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.algorithms.algorithm import (
    Contribution,
    Fleet,
    Metrics,
    PlatformState,
    mean_update,
)
from fedmeta.core import tree
from fedmeta.core.errors import SettingError
from fedmeta.core.step_sizes import split
from fedmeta.core.tree import Tree
from fedmeta.priors import TrainingPath, path_start, path_step

WORK, MOVED = "path-work", "path-moved"


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
        path = TrainingPath(state.memory[WORK], state.memory[MOVED])
        after, metrics = super().platform_step(state, total, fleet)
        if self.automatic:
            moved = split(tree.subtract(after.memory["accepted"], state.memory["accepted"]))[0]
            duals = split(mean_update(total))[0]  # anything, not a number even, if taken back
            duals = {n: torch.where(moved[n] == 0, 0.0, y) for n, y in duals.items()}
        else:
            moved = tree.subtract(after.theta, state.theta)
            duals = split(after.memory["duals"])[0]
        return _with_path(after, path_step(path, tree.scale(-1.0, duals), moved)), metrics


def _with_path(state: PlatformState, path: TrainingPath) -> PlatformState:
    return PlatformState(state.theta, {**state.memory, WORK: path.work, MOVED: path.moved})
