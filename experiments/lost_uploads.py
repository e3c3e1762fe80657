"""The default with several local steps while uploads get lost: does any run diverge?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from experiments.cell import Key
from experiments.experiment import OUTSIDE_PAGE, Experiment, Found, Goal, Summary
from experiments.statistics import accuracy
from experiments.tables import leaves, markdown, shown

CELLS = 12
"""1, 5 and 10 local steps; 0, 10, 30 and 50 % lost uploads."""


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """What is reached, and how many runs diverged."""
    for key, result in found.items():
        yield key, accuracy(result["repeats"], "precise")


def table(summary: Summary) -> str:
    """A row for every number of local steps and share of lost uploads."""
    rows = [
        [
            data,
            steps.removeprefix("K-"),
            f"{lost.removeprefix('lost-')} %",
            shown({**found, "diverged": 0}),
            f"{found['diverged']} of {found['n']}",
        ]
        for (data, steps, lost), found in leaves(summary["lost_uploads"], "diverged")
    ]
    return markdown(["data", "K", "lost uploads", "accuracy, %", "diverged"], rows)


def goals(summary: Summary) -> Iterator[Goal]:
    """No run diverges."""
    found = [each for _, each in leaves(summary["lost_uploads"], "diverged")]
    lost, runs = (sum(each[name] for each in found) for name in ("diverged", "n"))
    verdict = False if lost else (True if len(found) == CELLS else None)
    measured = f"{lost} of {runs}" if found else None
    yield "K = 1, 5, 10 with 0 to 50 % lost uploads: no run diverges", "0", measured, verdict


EXPERIMENT = Experiment(summarised, table, page=OUTSIDE_PAGE)
