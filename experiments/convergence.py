"""Convergence: loss and accuracy against rounds, gradient evaluations and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.cell import Key
from experiments.declaration import declaration
from experiments.experiment import Experiment, Found, Summary
from experiments.figures import COLOURS, legend, logarithmic, panels
from experiments.names import DEFAULT, data_sets, named
from experiments.statistics import at, mean_curve
from experiments.tables import leaves, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LINES = {"paper": "-", "tuned": "--", DEFAULT: "-."}


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """Curves, and what given accuracies cost."""
    thresholds = declaration("convergence").content["thresholds"]
    for key, result in found.items():
        repeats = result["repeats"]
        done = [each for each in repeats if not each["diverged"]]
        cost = {
            name: float(np.mean([each[name] / each["rounds"] for each in done])) if done else None
            for name in ("gradients", "bytes")
        }
        reached = mean_curve(repeats, "reached_precise")
        yield (
            key,
            {
                "loss": mean_curve(repeats, "loss"),
                "reached": mean_curve(repeats, "reached"),
                "reached-precise": reached,
                "per-round": cost,
                "to-reach": [_to_reach(reached, cost, each) for each in thresholds.get(key[1], ())],
                "diverged": len(repeats) - len(done),
            },
        )


def _to_reach(
    curve: list[list[float]], cost: Mapping[str, float | None], threshold: float
) -> dict[str, Any]:
    """Rounds, gradient evaluations and bytes at which the mean accuracy first is that high."""
    hits = (number for number, mean in zip(*curve, strict=True) if 100 * mean >= threshold)
    rounds = next(hits, None)
    costs = {
        name: None if rounds is None or each is None else round(rounds * each)
        for name, each in cost.items()
    }
    return {"accuracy": threshold, "rounds": rounds, **costs}


def table(summary: Summary) -> str:
    """What it costs to reach given accuracies that somebody reaches."""
    places: dict[tuple[str, str], list[Any]] = {}
    for (partition, data, *who), found in leaves(summary["convergence"], "to-reach"):
        if found["to-reach"]:
            places.setdefault((partition, data), []).append((who, found))
    parts = []
    for (partition, data), group in places.items():
        costs = [found["to-reach"] for _, found in group]
        some = [any(each["rounds"] for each in level) for level in zip(*costs, strict=True)]
        levels = [f"{each['accuracy']} %" for each in compress(costs[0], some)]
        rows = [
            [*map(named, who), *map(_spent, compress(cost, some)), str(found["diverged"])]
            for (who, found), cost in zip(group, costs, strict=True)
        ]
        rows_here = markdown(["algorithm", "variant", *levels, "diverged"], rows)
        parts.append(f"### {partition}, {named(data)}\n\n{rows_here}")
    return "\n\n".join(parts) or markdown([], [])


def _spent(cost: Mapping[str, Any]) -> str:
    """Rounds / gradient evaluations / MB per node."""
    if cost["rounds"] is None:
        return "–"
    return f"{cost['rounds']} / {cost['gradients']} / {cost['bytes'] / 1e6:.1f}"


def plot(figure: Figure, summary: Summary) -> None:
    """Loss and accuracy against rounds, then accuracy against what they cost."""
    found_here = at(summary, "convergence", "fixed-pairs") or {}
    names = [name for name in data_sets(summary) if name in found_here]
    if not names:
        return
    axes = panels(figure, 4, len(names), (3.9 if len(names) > 1 else 6.4, 2.3))
    for column, data in enumerate(names):
        loss, *others = (axes[row * len(names) + column] for row in range(4))
        starts = []
        for algorithm, variants in found_here[data].items():
            for variant, found in variants.items():
                look: dict[str, Any] = {
                    "color": COLOURS[algorithm],
                    "linestyle": _LINES[variant],
                    "label": f"{named(algorithm)}, {variant}",
                }
                loss.plot(*found["loss"], **look)
                starts += found["loss"][1][:1]
                rounds, shares = found["reached-precise"]
                reached = [100 * share for share in shares]
                cost = found["per-round"]
                units = (1.0, cost["gradients"] or 0.0, (cost["bytes"] or 0.0) / 1e6)
                for each, unit in zip(others, units, strict=True):
                    each.plot([unit * number for number in rounds], reached, **look)
        loss.set(title=named(data), xlabel="round")
        loss.set_yscale("log")
        if starts:
            loss.set_ylim(top=min(loss.get_ylim()[1], 3 * max(starts)))  # some go far beyond
        logarithmic(loss)
        for each, label in zip(
            others, ("round", "gradient evaluations per node", "MB per node"), strict=True
        ):
            each.set_xlabel(label)
        if column == 0:
            loss.set_ylabel("training loss")
            for each in others:
                each.set_ylabel("accuracy, %")
    legend(figure, axes, min(4, 2 * len(names)))


EXPERIMENT = Experiment(summarised, table, plot)
