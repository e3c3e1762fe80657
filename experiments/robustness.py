"""Robustness: any start of ρ, any data, any initialisation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from experiments.cell import Key
from experiments.experiment import Experiment, Found, Goal, Summary
from experiments.figures import INK, legend, panels_by_partition
from experiments.names import DATA_SETS, PARTITIONS, data_sets, named
from experiments.statistics import Entry, accuracy, at
from experiments.tables import MISSING, leaves, markdown, shown
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INITIALISATIONS = ("pytorch", "truncated-normal")
STARTS, FIXED = 7, 13
"""How many ρ a run with penalty "auto" is started from, and how many fixed ones judge it."""

_NEAR = 1.0  # points from the best fixed ρ


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
    """All starts of ρ together, and the best of the fixed ones."""
    rows = []
    places = {key[:-1]: None for key, _ in leaves(summary["robustness"], "mean")}
    for place in places:
        found = at(summary, "robustness", *place)
        auto = {name: row for name, row in found.items() if name.startswith("auto")}
        fixed = {name: row for name, row in found.items() if name.startswith("fixed")}
        means = [row["mean"] for row in auto.values() if row["mean"] is not None]
        span = f"{min(means):.2f} to {max(means):.2f}" if means else MISSING
        known = {name: row for name, row in fixed.items() if row["mean"] is not None}
        best = max(known, key=lambda name: float(known[name]["mean"]), default=None)
        cells = [span, _lost(auto), shown(known[best]) if best else MISSING]
        cells += [best.removeprefix("fixed-") if best else "–", _lost(fixed)]
        rows.append([*map(named, place), *cells])
    heads = ["partition", "data", "initialisation", "any start: means, %", "diverged"]
    return markdown([*heads, "best fixed ρ, %", "which", "diverged at fixed ρ"], rows)


def _lost(rows: Mapping[str, Entry]) -> str:
    lost, runs = (sum(row[name] for row in rows.values()) for name in ("diverged", "n"))
    return f"{lost} of {runs}" if rows else MISSING


def plot(figure: Figure, summary: Summary) -> None:
    """Accuracy against ρ: fixed, and as the start of a ρ that finds itself."""
    found = summary["robustness"]
    names = [name for name in data_sets(summary) if any(name in each for each in found.values())]
    panels = panels_by_partition(figure, names, (3.9, 3.0))
    for each, partition, data, first in panels:
        places = at(found, partition, data) or {}
        for tint, (initialisation, rows) in zip(SERIES, places.items(), strict=False):
            for kind, mark, label in (("fixed", "o--", "fixed ρ"), ("auto", "s-", "start of ρ")):
                mine = {_penalty(name): row for name, row in rows.items() if name.startswith(kind)}
                known = [(rho, row) for rho, row in sorted(mine.items()) if row["mean"] is not None]
                if known:
                    line = [(rho, row["mean"]) for rho, row in known]
                    words = f"{label}, {initialisation}"
                    width = 2.2 if kind == "auto" else 1.0
                    each.plot(
                        *zip(*line, strict=True), mark, color=tint, markersize=4, label=words,
                        linewidth=width,
                    )  # fmt: skip
                lost = [(rho, row["mean"]) for rho, row in known if row["diverged"]]
                if lost:
                    each.plot(
                        *zip(*lost, strict=True), "x", color=INK, markersize=7,
                        label="some runs diverged",
                    )  # fmt: skip
        each.set(title=f"{named(data)}, {partition}", xlabel="ρ", xscale="log")
        if first:
            each.set_ylabel("accuracy, precise sets, %")
    legend(figure, [each for each, *_ in panels], 3)


def _penalty(name: str) -> float:
    """The ρ in the name of a cell; 3 stands for √10.

    Example:
        >>> _penalty("auto-1e-3"), round(_penalty("fixed-3e0"), 3)
        (0.001, 3.162)
    """
    digit, exponent = name.split("-", 1)[1].split("e")
    return float(10 ** (int(exponent) + (0.5 if digit == "3" else 0.0)))


def goals(summary: Summary) -> Iterator[Goal]:
    """No run from any start diverges, and the mean over starts is near the best fixed ρ."""
    found = summary["robustness"]
    places = [
        (partition, data, initialisation)
        for partition in PARTITIONS
        for data in DATA_SETS
        for initialisation in INITIALISATIONS
    ]
    rows = {place: _of_kind(at(found, *place), "auto") for place in places}
    runs = [row for mine in rows.values() for row in mine]
    lost, count = (sum(row[name] for row in runs) for name in ("diverged", "n"))
    complete = all(len(mine) == STARTS for mine in rows.values())
    verdict = False if lost else (True if complete else None)
    measured = f"{lost} of {count}" if count else None
    yield "penalty auto: no run diverges, from any start", "0", measured, verdict
    for place, mine in rows.items():
        fixed = [row["mean"] or 0.0 for row in _of_kind(at(found, *place), "fixed")]
        means = [row["mean"] or 0.0 for row in mine]
        text = f"penalty auto near the best fixed ρ: {', '.join(place)}"
        if len(means) < STARTS or len(fixed) < FIXED:
            yield text, f"within {_NEAR:g} point", None, None
            continue
        mean, best = sum(means) / len(means), max(fixed)
        found_here = f"{mean:.2f} (worst start {min(means):.2f})"
        yield text, f"≥ {best - _NEAR:.2f}", found_here, mean >= best - _NEAR


def _of_kind(rows: Mapping[str, Entry] | None, kind: str) -> list[Entry]:
    return [row for name, row in (rows or {}).items() if name.startswith(kind)]


EXPERIMENT = Experiment(summarised, table, plot)
