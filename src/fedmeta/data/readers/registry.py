"""Which reader reads what: built-in data sets by name, the user's own files by their ending.

A new source of samples is a module in this folder and a line in one of these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedmeta.data.federation import TaskKind
from fedmeta.data.pool import Pool
from fedmeta.data.readers.cifar import read_cifar
from fedmeta.data.readers.digits import read_digits
from fedmeta.data.readers.fashion_mnist import read_fashion_mnist
from fedmeta.data.readers.npz import read_npz
from fedmeta.data.readers.sinusoid import draw_sinusoids
from fedmeta.data.readers.table import read_table

if TYPE_CHECKING:
    from fedmeta.data.settings import DataSettings


class BuiltIn(NamedTuple):
    """A data set that is known by name.

    Args:
        read: (settings, seed) → its samples.
        task: what its labels mean.
        has_nodes: whether it says whose samples they are; if not, nodes are drawn.
    """

    read: Callable[[DataSettings, int], Pool]
    task: TaskKind = "classification"
    has_nodes: bool = False


BUILT_IN = {
    "digits": BuiltIn(lambda _settings, _seed: read_digits()),
    "fashion-mnist": BuiltIn(lambda settings, _seed: read_fashion_mnist(settings.folder)),
    "cifar10": BuiltIn(lambda settings, _seed: read_cifar("cifar10", settings.folder)),
    "cifar100": BuiltIn(lambda settings, _seed: read_cifar("cifar100", settings.folder)),
    "sinusoid": BuiltIn(
        lambda settings, seed: draw_sinusoids(settings.nodes, settings.samples, seed),
        task="regression",
        has_nodes=True,
    ),
}


def _read_table(
    path: Path, task: TaskKind, label: str | None, node: str | None, features: Sequence[str] | None
) -> Pool:
    return read_table(path, task=task, label=label, node=node, features=features)


def _read_npz(
    path: Path, task: TaskKind, label: str | None, node: str | None, _features: Sequence[str] | None
) -> Pool:
    return read_npz(path, task=task, label=label, node=node)  # arrays have no columns to choose


FILES = {".npz": _read_npz, ".csv": _read_table, ".parquet": _read_table}
