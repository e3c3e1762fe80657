"""Training loss for several ρ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from experiments.cell import Key
from experiments.experiment import Experiment, Found, Summary
from experiments.figures import logarithmic, panels_by_partition
from experiments.names import data_sets, named
from experiments.statistics import accuracy, at, mean_curve
from experiments.tables import leaves, markdown, shown
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """Loss on the way and accuracy at the end."""
    for key, result in found.items():
        repeats = result["repeats"]
        yield key, {"loss": mean_curve(repeats, "loss"), "accuracy": accuracy(repeats, "precise")}


def table(summary: Summary) -> str:
    """How training ends for several ρ."""
    rows = [
        [*map(named, key[:-1]), key[-1].removeprefix("rho-"), shown(found["accuracy"])]
        for key, found in leaves(summary["rho"], "accuracy")
    ]
    return markdown(["partition", "data", "ρ", "accuracy, precise sets, %"], rows)


def plot(figure: Figure, summary: Summary) -> None:
    """Training loss for several ρ; how many diverged stands in the legend."""
    names = [name for name in data_sets(summary) if any(name in v for v in summary["rho"].values())]
    for each, partition, data, first in panels_by_partition(figure, names, (3.9, 3.2)):
        found = at(summary, "rho", partition, data) or {}
        for tint, (name, row) in zip(SERIES, found.items(), strict=False):
            lost = row["accuracy"]["diverged"] if row["accuracy"] else 0
            ending = f" ({lost} of {row['accuracy']['n']} diverged)" if lost else ""
            label = f"ρ = {name.removeprefix('rho-')}{ending}"
            each.plot(*row["loss"], color=tint, label=label)
        each.set(title=f"{named(data)}, {partition}", xlabel="round")
        logarithmic(each)
        if found:
            each.legend(fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")
        if first:
            each.set_ylabel("meta-loss on the sources")


EXPERIMENT = Experiment(summarised, table, plot)
