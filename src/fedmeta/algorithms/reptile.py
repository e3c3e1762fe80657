"""Reptile: move towards where local training leads (Nichol, Achiam, Schulman, 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core.errors import require_positive


@dataclass(frozen=True)
class Reptile(FedAvg):
    """FedAvg with a platform step of its own length.

    Node:      θ_i ← θ_i − η ∇L_i(θ_i, Dˢ ∪ D^q), E times from θ
    Platform:  θ⁺  = θ + ε Σ w_i (θ_i − θ) / Σ w_i

    Args:
        mixing: ε > 0.
        local_steps: E ≥ 1; with E = 1 it is joint training, so the default is 5.
        step_size: η > 0.
        batch_size: samples per local step; None takes all.
        inner: how a target adapts.
        step_rate, server: see `Baseline`; ε shortens the step of s as it does that of θ.

    Reference: Nichol, Achiam, Schulman, On First-Order Meta-Learning Algorithms, 2018.
    """

    name: ClassVar[str] = "reptile"

    local_steps: int = 5
    mixing: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("mixing", self.mixing)
