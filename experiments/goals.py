"""What was to hold, and whether it does: computed from the numbers, never typed."""

from __future__ import annotations

from typing import Any

from experiments import robustness, sequences, table1, table2
from experiments.experiment import Summary
from experiments.tables import MISSING, markdown


def goals(summary: Summary) -> list[dict[str, Any]]:
    """Every goal with what was measured; `reached` is None where something was not run yet."""
    return [
        {"goal": goal, "wanted": wanted, "measured": measured, "reached": reached}
        for experiment in (table1, robustness, table2, sequences)
        for goal, wanted, measured, reached in experiment.goals(summary)
    ]


def table(summary: Summary) -> str:
    """What was to hold and whether it does."""
    rows = []
    for each in summary["goals"]:
        unknown = MISSING if each["measured"] is None else "not all run yet"
        verdict = {True: "yes", False: "**no**", None: unknown}[each["reached"]]
        rows.append([each["goal"], each["wanted"], each["measured"] or "–", verdict])
    return markdown(["goal", "wanted", "measured", "reached"], rows)
