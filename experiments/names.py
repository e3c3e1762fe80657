"""What data sets, algorithms and variants are called in keys, and by people."""

from __future__ import annotations

from experiments.experiment import Summary

DATA_SETS = ("fashion-mnist", "cifar10", "cifar100")
"""Those of the paper."""


OURS, DEFAULT, MATCHED = "admm-fedmeta", "default", "matched"
BASELINES = ("fedavg", "per-fedavg")
PARTITIONS = ("fixed-pairs", "random-pairs")

NAMES = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fedavg": "FedAvg",
    "per-fedavg": "Per-FedAvg",
    "admm-fedmeta": "ADMM-FedMeta",
    "prior-model": "θ_p itself",
    "prior-model-default": "θ_p itself (default)",
    "admm-fedmeta-default": "ADMM-FedMeta (default)",
    "fedmeta-orthogonal": "FedMeta, orthogonal",
    "fedmeta-adam": "FedMeta, Adam",
    "fedmeta-plain": "FedMeta, plain",
    "prototypes": "prototypes, orthogonal",
    "per-fedavg-5-orthogonal": "Per-FedAvg 5, orthogonal",
    "fedavg-5-orthogonal": "FedAvg 5, orthogonal",
    "fedavg-5-adam": "FedAvg 5, Adam (FedAdam)",
    "fedavg-5-yogi": "FedAvg 5, Yogi (FedYogi)",
    "fedavg-5-plain": "FedAvg 5, plain",
    "fedprox-5-orthogonal": "FedProx 5, orthogonal",
    "scaffold-5-orthogonal": "SCAFFOLD 5, orthogonal",
    "feddyn-5-orthogonal": "FedDyn 5, orthogonal",
    "fedadmm-5-orthogonal": "FedADMM 5, orthogonal",
    "fedbabu-5-orthogonal": "FedBABU 5, orthogonal",
    "fedrep-5-orthogonal": "FedRep 5, orthogonal",
    "ditto-5-orthogonal": "Ditto 5, orthogonal",
    "pfedme-2-orthogonal": "pFedMe 2 × 3, orthogonal",
}


def named(name: str) -> str:
    """A data set or algorithm as people call it."""
    return NAMES.get(name, name)


def data_sets(summary: Summary) -> list[str]:
    """Those of the paper, or the others that a quick run took in their place."""
    found = {name for each in summary["table1"].values() for name in each}
    found |= {name for part in ("table2", "prior", "samples") for name in summary[part]}
    return sorted(found - set(DATA_SETS)) or list(DATA_SETS)
