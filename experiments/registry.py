"""All experiments, in the order of the page."""

from __future__ import annotations

from importlib import import_module

from experiments.cell import Cell
from experiments.declaration import declaration
from experiments.experiment import Experiment
from fedmeta.core.errors import SettingError, nearest

EXPERIMENTS: dict[str, Experiment] = {
    name: import_module(f"experiments.{name}").EXPERIMENT
    for name in (
        "table1",
        "table2",
        "convergence",
        "rho",
        "prior",
        "prior_regime",
        "samples",
        "dissimilarity",
        "ablation",
        "robustness",
        "sequences",
        "outside",
        "duals",
        "lost_uploads",
        "backbone",
    )
}
"""By their names: of module and declaration, of folder of results, of part of the page."""


def cells(name: str, *, quick: bool = False) -> list[Cell]:
    """All cells of an experiment, the tuning cells that others rest on before them.

    Args:
        name: of the experiment.
        quick: a small version of it on data that come along.

    Example:
        >>> cells("table1")[0].path
        'table1/fixed-pairs/fashion-mnist/fedavg/paper'
    """
    if name not in EXPERIMENTS:
        raise SettingError(f"experiment {name!r} is unknown", nearest(name, EXPERIMENTS))
    return EXPERIMENTS[name].cells(declaration(name, quick=quick))


def all_cells(*, quick: bool = False) -> list[Cell]:
    """The cells of all experiments; a tuning cell that two of them rest on is there twice."""
    return [cell for name in EXPERIMENTS for cell in cells(name, quick=quick)]
