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
from fedmeta.algorithms.ditto import Ditto
from fedmeta.algorithms.fedadmm import FedADMM
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.algorithms.fedbabu import FedBABU
from fedmeta.algorithms.feddyn import FedDyn
from fedmeta.algorithms.fedewc import FedEWC
from fedmeta.algorithms.fedlwf import FedLwF
from fedmeta.algorithms.fedmeta import FedMeta
from fedmeta.algorithms.fedprox import FedProx
from fedmeta.algorithms.fedrep import FedRep
from fedmeta.algorithms.local_only import LocalOnly
from fedmeta.algorithms.per_fedavg import PerFedAvg
from fedmeta.algorithms.pfedme import PFedMe
from fedmeta.algorithms.platform_optimizer import PlatformOptimizer
from fedmeta.algorithms.prototype import Prototypes
from fedmeta.algorithms.reptile import Reptile
from fedmeta.algorithms.scaffold import Scaffold
from fedmeta.algorithms.target import Target

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        *(ADMMFedMeta, FedAvg, PerFedAvg, FedMeta, Reptile),
        *(FedProx, Scaffold, FedDyn, FedADMM),
        *(Ditto, PFedMe, FedRep, FedBABU),
        *(Prototypes, LocalOnly, Centralised),
        *(FedEWC, FedLwF, Target),
    )
}

__all__ = [
    "ALGORITHMS",
    "ADMMFedMeta",
    "Algorithm",
    "Centralised",
    "Contribution",
    "Ditto",
    "FedADMM",
    "FedAvg",
    "FedBABU",
    "FedDyn",
    "FedEWC",
    "FedLwF",
    "FedMeta",
    "FedProx",
    "FedRep",
    "Fleet",
    "LocalOnly",
    "Metrics",
    "NodeState",
    "PFedMe",
    "PerFedAvg",
    "PlatformOptimizer",
    "PlatformState",
    "Prototypes",
    "Reptile",
    "Scaffold",
    "Target",
]
