"""The prior and λ: accuracy on all classes and on those of the prior task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.experiment import Experiment, Summary
from experiments.figures import legend, line, panels
from experiments.names import named
from experiments.statistics import at
from experiments.table2 import on_both_tasks
from experiments.tables import leaves, markdown, shown
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(summary: Summary) -> str:
    """What λ does."""
    rows = []
    for (data, strength), found in leaves(summary["prior"], "new"):
        reached = [shown(found[name]) for name in ("new-precise", "prior-precise")]
        rows.append([named(data), named(strength.removeprefix("lambda-")), *reached])
    return markdown(
        ["data", "λ", "targets of all classes, %", "targets of the prior task, %"], rows
    )


def plot(figure: Figure, summary: Summary) -> None:
    """Accuracy against λ, with that of θ_p itself as a line."""
    (axes,) = panels(figure, 1, 1, (6.4, 3.6))
    for data, found in summary["prior"].items():
        rows = {
            float(name.removeprefix("lambda-")): row
            for name, row in found.items()
            if name.startswith("lambda-")
        }
        strengths = sorted(rows)
        for which, tint, label in (
            ("new-precise", SERIES[0], "targets of all classes"),
            ("prior-precise", SERIES[1], "targets of the prior task"),
        ):
            entries = [rows[strength][which] for strength in strengths]
            line(axes, strengths, entries, tint, label)
            start = at(found, "prior-model", which)
            if start is not None and start["mean"] is not None:
                axes.axhline(start["mean"], color=tint, linestyle=":", label=f"{label}: θ_p itself")
        axes.set_title(named(data))
    axes.set_xscale("symlog", linthresh=0.5)
    ticks = (0, 0.5, 1, 2, 5, 10, 20, 50)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlabel="λ", ylabel="accuracy, precise sets, %", xlim=(-0.03, 60))
    legend(figure, [axes], 2)


EXPERIMENT = Experiment(on_both_tasks, table, plot)
