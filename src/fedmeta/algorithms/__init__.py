"""The algorithms, by name: one file each, all behind the contract of `algorithm`."""

from __future__ import annotations

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
)
from fedmeta.algorithms.centralised import Centralised
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.algorithms.fedmeta import FedMeta
from fedmeta.algorithms.local_only import LocalOnly
from fedmeta.algorithms.per_fedavg import PerFedAvg
from fedmeta.algorithms.reptile import Reptile

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (ADMMFedMeta, FedAvg, PerFedAvg, FedMeta, Reptile, LocalOnly, Centralised)
}

__all__ = [
    "ALGORITHMS",
    "ADMMFedMeta",
    "Algorithm",
    "Centralised",
    "Contribution",
    "FedAvg",
    "FedMeta",
    "Fleet",
    "LocalOnly",
    "Metrics",
    "NodeState",
    "PerFedAvg",
    "PlatformState",
    "Reptile",
]
