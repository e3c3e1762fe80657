"""What data sets, algorithms and variants are called in keys, and by people."""

from __future__ import annotations

from experiments.experiment import Summary

DATA_SETS = ("fashion-mnist", "cifar10", "cifar100")
"""Those of the paper."""


OURS, DEFAULT = "admm-fedmeta", "default"
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
}


def named(name: str) -> str:
    """A data set or algorithm as people call it."""
    return NAMES.get(name, name)


def data_sets(summary: Summary) -> list[str]:
    """Those of the paper, or the others that a quick run took in their place."""
    found = {name for each in summary["table1"].values() for name in each}
    found |= {name for part in ("table2", "prior", "samples") for name in summary[part]}
    return sorted(found - set(DATA_SETS)) or list(DATA_SETS)
