"""When a prior helps: where the new task begins, how many sources and rounds it has, and λ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from experiments.cell import Key
from experiments.experiment import Experiment, Found, Summary
from experiments.names import named
from experiments.statistics import accuracy, paired
from experiments.tables import leaves, markdown, points, shown

_BEGINS = {"from-prior": "at θ_p", "anew": "at new weights"}
_NONE = "lambda-0"


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """What every λ reaches on targets of all classes, and how much more than no prior does."""
    for key, result in found.items():
        repeats, without = result["repeats"], found.get((*key[:-1], _NONE))
        row: dict[str, Any] = {"precise": accuracy(repeats, "precise")}
        if without is not None and key[-1] != _NONE:
            row["gain"] = paired(repeats, without["repeats"], "precise")
        yield key, row


def table(summary: Summary) -> str:
    """A line for every start, number of sources and number of rounds."""
    reached = dict(leaves(summary["prior_regime"], "precise"))
    strengths = list(dict.fromkeys(key[-1] for key in reached if len(key) > 2 and key[-1] != _NONE))
    rows = []
    for key, found in reached.items():
        if len(key) == 2:
            empty = ["" for _ in strengths]
            rows.append([named(key[0]), "θ_p itself", "", "", shown(found["precise"]), *empty])
        elif key[-1] == _NONE:
            data, begins, sources, rounds, _ = key
            others = (reached.get((*key[:-1], each)) for each in strengths)
            gains = [points(each and each.get("gain")) for each in others]
            counts = [each.split("-")[0] for each in (sources, rounds)]
            rows.append([named(data), _BEGINS[begins], *counts, shown(found["precise"]), *gains])
    columns = [f"λ = {each.removeprefix('lambda-')}, points" for each in strengths]
    return markdown(["data", "begins", "sources", "rounds", "λ = 0, %", *columns], rows)


EXPERIMENT = Experiment(summarised, table)
