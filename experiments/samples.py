"""Accuracy against the size of the support set (Corollary 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.experiment import Experiment, Summary
from experiments.figures import legend, line, panels
from experiments.names import named
from experiments.table1 import by_protocol
from experiments.tables import leaves, markdown, shown
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(summary: Summary) -> str:
    """Accuracy by support size, on precise sets."""
    rows = [
        [named(data), settings, size.split("-")[1], shown(found)]
        for (data, settings, size), found in leaves(summary["samples"], "mean")
        if size.endswith("-precise")
    ]
    return markdown(["data", "settings", "support samples", "accuracy, precise sets, %"], rows)


def plot(figure: Figure, summary: Summary) -> None:
    """Accuracy against support size."""
    names = list(summary["samples"])
    axes = panels(figure, 1, len(names), (3.7, 3.2))
    for number, (each, data) in enumerate(zip(axes, names, strict=True)):
        for tint, (variant, found) in zip(SERIES, summary["samples"][data].items(), strict=False):
            rows = {
                int(name.split("-")[1]): entry
                for name, entry in found.items()
                if name.endswith("-precise")
            }
            line(each, sorted(rows), [rows[size] for size in sorted(rows)], tint, variant)
        each.set_xscale("log")
        sizes = (2, 5, 10, 20, 40)
        each.set_xticks(sizes, [str(size) for size in sizes])
        each.set_xticks([], minor=True)
        each.set(title=named(data), xlabel="support samples of a node")
        if number == 0:
            each.set_ylabel("accuracy, precise sets, %")
    legend(figure, axes)


EXPERIMENT = Experiment(by_protocol, table, plot)
