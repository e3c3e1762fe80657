"""Robustness: any start of ρ, any data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from experiments.cell import Key
from experiments.experiment import Experiment, Found, Goal, Summary
from experiments.figures import INK, legend, panels_by_partition
from experiments.names import DATA_SETS, PARTITIONS, data_sets, named
from experiments.statistics import Entry, accuracy, at
from experiments.tables import MISSING, leaves, markdown
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STARTS = 3
"""How many ρ a run with penalty "auto" is started from."""

_NEAR = 1.0  # points between the best and the worst start


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """Here a run counts as diverged, too, if its model has not half the loss that it began with."""
    for key, result in found.items():
        repeats = result["repeats"]
        if (mean := accuracy(repeats, "precise")) is not None:
            yield key, {**mean, "diverged": sum(not _fell(each) for each in repeats)}


def _fell(repeat: Mapping[str, Any]) -> bool:
    if repeat["diverged"]:
        return False
    _, losses = repeat["loss"]
    final = repeat["final_loss"]
    return final is not None and bool(final < losses[0] / 2)


def table(summary: Summary) -> str:
    """All starts of ρ together."""
    rows = []
    places = {key[:-1]: None for key, _ in leaves(summary["robustness"], "mean")}
    for place in places:
        found = at(summary, "robustness", *place)
        means = _means(found)
        span = f"{min(means):.2f} to {max(means):.2f}" if means else MISSING
        rows.append([*map(named, place), span, _lost(found)])
    return markdown(["partition", "data", "any start: means, %", "diverged"], rows)


def _means(rows: Mapping[str, Entry]) -> list[float]:
    return [float(row["mean"]) for row in rows.values() if row["mean"] is not None]


def _lost(rows: Mapping[str, Entry]) -> str:
    lost, runs = (sum(row[name] for row in rows.values()) for name in ("diverged", "n"))
    return f"{lost} of {runs}"


def plot(figure: Figure, summary: Summary) -> None:
    """Accuracy against the ρ that a run starts from."""
    found = summary["robustness"]
    names = [name for name in data_sets(summary) if any(name in each for each in found.values())]
    panels = panels_by_partition(figure, names, (3.9, 3.0))
    for each, partition, data, first in panels:
        rows = {_penalty(name): row for name, row in (at(found, partition, data) or {}).items()}
        known = [(rho, row) for rho, row in sorted(rows.items()) if row["mean"] is not None]
        if known:
            line = [(rho, row["mean"]) for rho, row in known]
            each.plot(*zip(*line, strict=True), "s-", color=SERIES[0], label="start of ρ")
        if lost := [(rho, row["mean"]) for rho, row in known if row["diverged"]]:
            xs, ys = zip(*lost, strict=True)
            each.plot(xs, ys, "x", color=INK, markersize=7, label="some runs diverged")
        each.set(title=f"{named(data)}, {partition}", xlabel="ρ", xscale="log")
        if first:
            each.set_ylabel("accuracy, precise sets, %")
    legend(figure, [each for each, *_ in panels], 3)


def _penalty(name: str) -> float:
    """The ρ in the name of a cell.

    Example:
        >>> _penalty("auto-1e-3")
        0.001
    """
    return float(name.split("-", 1)[1])


def goals(summary: Summary) -> Iterator[Goal]:
    """No run from any start diverges, and all starts lead to about the same."""
    places = [(partition, data) for partition in PARTITIONS for data in DATA_SETS]
    rows = {place: at(summary, "robustness", *place) or {} for place in places}
    runs = [row for mine in rows.values() for row in mine.values()]
    lost, count = (sum(row[name] for row in runs) for name in ("diverged", "n"))
    complete = all(len(mine) == STARTS for mine in rows.values())
    verdict = False if lost else (True if complete else None)
    measured = f"{lost} of {count}" if count else None
    yield "penalty auto: no run diverges, from any start", "0", measured, verdict
    for place, mine in rows.items():
        text, wanted = f"penalty auto: starts agree: {', '.join(place)}", f"within {_NEAR:g} point"
        means = _means(mine)
        if len(means) < STARTS:
            yield text, wanted, None, None
        else:
            apart = max(means) - min(means)
            yield text, wanted, f"{min(means):.2f} to {max(means):.2f}", apart <= _NEAR


EXPERIMENT = Experiment(summarised, table, plot)
