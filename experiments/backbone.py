"""A frozen pretrained backbone: the default against what can be had from its features otherwise.

The default adapts by class means of what a hidden layer makes of features. The same with a gradient
step of its head; class means of a target's support set, without any training; FedAvg on a linear
layer; a linear layer that every target trains alone. All see the same features; leads are paired by
seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from experiments.cell import Cell, Key
from experiments.declaration import Declaration, declared_cells
from experiments.experiment import OUTSIDE_PAGE, Experiment, Found, Goal, Summary
from experiments.names import DEFAULT, PARTITIONS
from experiments.statistics import accuracy, paired
from experiments.tables import leaves, markdown, points, shown
from experiments.tuning import assigned

RIVALS = {
    "gradient-step": "head by a gradient step",
    "class-means": "class means, untrained",
    "fedavg": "FedAvg, linear, 5 steps",
    "linear-probe": "linear probing",
}
_WANTED = {"fixed-pairs": 95.5, "random-pairs": 95.0}
_FOLDER = "efficientnet-lite0"


def cells(declared: Declaration) -> list[Cell]:
    """What is declared; the small version has none, since weights do not come along."""
    return [] if declared.quick else declared_cells(declared)


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """What is reached, before and after adapting, and how far the default is ahead."""
    for key, result in found.items():
        *place, name = key
        ours = found.get((*place, DEFAULT))
        lead = name != DEFAULT and ours is not None
        yield (
            key,
            {
                "precise": accuracy(result["repeats"], "precise"),
                "lead": paired(ours["repeats"], result["repeats"], "precise")
                if lead and ours
                else None,
                "bytes": next((each.get("bytes") for each in result["repeats"]), None),
            },
        )


def table(summary: Summary) -> str:
    """A row for every partition."""
    rows = []
    for partition, found in _partitions(summary).items():
        ours = found.get(DEFAULT, {})
        rivals = [found.get(name, {}) for name in RIVALS]
        rows.append(
            [
                partition.replace("-", " "),
                shown(ours.get("precise")),
                *(f"{shown(e.get('precise'))} ({points(e.get('lead'))})" for e in rivals),
            ]
        )
    return markdown(["nodes", "the default, %", *RIVALS.values()], rows)


def tuning_table(summary: Summary) -> str:
    """The points that held-out source nodes have chosen for rivals."""
    searches = summary.get("tuning", {}).get(_FOLDER, {})
    rows = [
        [partition.replace("-", " "), RIVALS[name], assigned(found["best"])]
        for (partition, name), found in leaves(searches, "points")
    ]
    return markdown(["nodes", "rival", "point"], rows)


def goals(summary: Summary) -> Iterator[Goal]:
    """As accurate as was asked for, and ahead of everything else."""
    places = _partitions(summary)
    for partition in PARTITIONS:
        found, wanted = places.get(partition, {}), _WANTED[partition]
        title = f"EfficientNet-Lite0, frozen, {partition.replace('-', ' ')}"
        mine = found.get(DEFAULT, {}).get("precise")
        reached = None if mine is None else bool(mine["mean"] and mine["mean"] >= wanted)
        yield f"{title}: after one step", f"≥ {wanted:g} %", mine and shown(mine), reached
        for name, words in RIVALS.items():
            if name == "gradient-step":  # another default, no goal
                continue
            lead = found.get(name, {}).get("lead")
            known = lead is not None and lead["mean"] is not None
            ahead = lead["mean"] - (lead["ci95"] or 0) > 0 if known else None
            yield (
                f"{title}: ahead of {words}",
                "interval above 0",
                (known and points(lead)) or None,
                ahead,
            )


def _partitions(summary: Summary) -> dict[str, Any]:
    found: dict[str, Any] = summary.get("backbone", {}).get(_FOLDER, {})
    return {name: found[name] for name in PARTITIONS if name in found}


EXPERIMENT = Experiment(
    summarised, table, further={"backbone-tuning": tuning_table}, cells=cells, page=OUTSIDE_PAGE
)
