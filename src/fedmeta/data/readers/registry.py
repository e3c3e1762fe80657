"""Which reader reads what built-in data set; `fedmeta.data.loading` picks those of own files.

A new source of samples is a module in this folder and a line in this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fedmeta.data.federation import TaskKind
from fedmeta.data.pool import Pool
from fedmeta.data.readers.cifar import read_cifar
from fedmeta.data.readers.digits import read_digits
from fedmeta.data.readers.fashion_mnist import read_fashion_mnist
from fedmeta.data.readers.glyphs import draw_glyphs
from fedmeta.data.readers.sinusoid import draw_sinusoids

if TYPE_CHECKING:
    from fedmeta.data.settings import DataSettings


class BuiltIn(NamedTuple):
    """A data set that is known by name.

    Args:
        read: (settings, seed) → its samples.
        task: what its labels mean.
        has_nodes: whether it says whose samples they are; if not, nodes are drawn.
        few_shot: whether it has many classes of few samples, so that nodes are drawn as episodes.
    """

    read: Callable[[DataSettings, int], Pool]
    task: TaskKind = "classification"
    has_nodes: bool = False
    few_shot: bool = False


BUILT_IN = {
    "digits": BuiltIn(lambda _settings, _seed: read_digits()),
    "glyphs": BuiltIn(lambda _settings, seed: draw_glyphs(seed), few_shot=True),
    "fashion-mnist": BuiltIn(lambda settings, _seed: read_fashion_mnist(settings.folder)),
    "cifar10": BuiltIn(lambda settings, _seed: read_cifar("cifar10", settings.folder)),
    "cifar100": BuiltIn(lambda settings, _seed: read_cifar("cifar100", settings.folder)),
    "sinusoid": BuiltIn(
        lambda settings, seed: draw_sinusoids(settings.nodes, settings.samples, seed),
        task="regression",
        has_nodes=True,
    ),
}
