"""What was to hold, and whether it does: computed from the numbers, never typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments import backbone, lost_uploads, outside, robustness, sequences, table1, table2
from experiments.experiment import Summary
from experiments.tables import MISSING, markdown

OUTSIDE = "goals-outside"
"""Those of the page outside the paper, in the summary and on the page."""


def goals(summary: Summary) -> list[dict[str, Any]]:
    """Every goal with what was measured; `reached` is None where something was not run yet."""
    return _told(_WITH_GOALS, summary)


def outside_goals(summary: Summary) -> list[dict[str, Any]]:
    """The same outside the paper."""
    return _told({"outside": outside, "lost_uploads": lost_uploads, "backbone": backbone}, summary)


def _told(experiments: Mapping[str, Any], summary: Summary) -> list[dict[str, Any]]:
    found = []
    for name, experiment in experiments.items():
        for goal, wanted, measured, reached in experiment.goals(summary):
            older = [
                cell  # goals outside the paper begin with the data that cells begin with
                for cell in summary["older"].get(name, ())
                if experiment is not outside or goal.startswith(cell.partition("/")[0])
            ]
            words = f"{measured} (older default)" if measured and older else measured
            found.append({"goal": goal, "wanted": wanted, "measured": words, "reached": reached})
    return found


_WITH_GOALS = {"table1": table1, "robustness": robustness, "table2": table2, "sequences": sequences}


def table(summary: Summary) -> str:
    """What was to hold and whether it does."""
    return _table(summary["goals"])


def outside_table(summary: Summary) -> str:
    """The same outside the paper."""
    return _table(summary[OUTSIDE])


def _table(found: Iterable[dict[str, Any]]) -> str:
    rows = []
    for each in found:
        unknown = MISSING if each["measured"] is None else "not all run yet"
        verdict = {True: "yes", False: "**no**", None: unknown}[each["reached"]]
        rows.append([each["goal"], each["wanted"], each["measured"] or "–", verdict])
    return markdown(["goal", "wanted", "measured", "reached"], rows)
