"""What ADMM itself contributes: with and without duals and their extrapolation, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from experiments.cell import Key
from experiments.experiment import OUTSIDE_PAGE, Experiment, Found, Summary
from experiments.statistics import accuracy, paired
from experiments.tables import leaves, markdown, points, shown

EQUAL = "-equal"
"""Ends the names of cells that were given as many gradients as one local step costs."""


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """What is reached, the gain by what a rule leaves out, and the gain by more local steps."""
    for key, result in found.items():
        *place, steps, rule = key
        ending = EQUAL if rule.endswith(EQUAL) else ""
        repeats, which = result["repeats"], _protocol(result["repeats"])
        both = found.get((*place, steps, f"both{ending}"))
        one = found.get((*place, "K-1", "both"))
        left_out = not rule.startswith("both") and both is not None
        more = rule.startswith("both") and steps != "K-1" and one is not None
        yield (
            key,
            {
                "accuracy": accuracy(repeats, which),
                "gain": paired(both["repeats"], repeats, which) if left_out and both else None,
                "over-one-step": paired(repeats, one["repeats"], which) if more and one else None,
            },
        )


def _protocol(repeats: Iterable[dict[str, Any]]) -> str:
    return "precise" if any(each.get("precise") for each in repeats) else "accuracy"


def table(summary: Summary) -> str:
    """A row for every number of local steps, share of lost uploads and budget."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for (data, lost, steps, rule), found in leaves(summary["duals"], "gain"):
        budget = "gradients" if rule.endswith(EQUAL) else "rounds"
        rows.setdefault((data, lost, steps, budget), {})[rule.removesuffix(EQUAL)] = found
    lines = []
    for (data, lost, steps, budget), found in rows.items():
        both = found.get("both", {})
        gains = [found.get(name, {}).get("gain") for name in ("no-extrapolation", "no-duals")]
        lines.append(
            [
                data,
                f"{lost.removeprefix('lost-')} %",
                steps.removeprefix("K-"),
                "50 rounds" if budget == "rounds" else "equal gradients",
                shown(both.get("accuracy")),
                *map(points, gains),
                points(both.get("over-one-step")),
            ]
        )
    heads = ["data", "lost uploads", "K", "budget", "with duals and extrapolation, %"]
    heads += ["gain by extrapolation, points", "gain by duals, points"]
    return markdown([*heads, "gain over K = 1, points"], lines)


EXPERIMENT = Experiment(summarised, table, page=OUTSIDE_PAGE)
