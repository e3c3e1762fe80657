"""The release gate inside a sequence: may the model after a task take the place of the one before?

After every task each earlier task judges: its targets adapt the model in service, which is the one
after the task before, and the candidate, and tell by how much their accuracy falls. Only sums over
targets are used (`studies.gate`). All is computed from models that are kept anyway, so a sequence
that goes on after a kill says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmeta.data.pool import Array
from fedmeta.evaluation.intervals import FEWEST
from fedmeta.studies.gate import add_up, judge
from fedmeta.studies.sequences.declaration import TaskSequence

OfNodes = Mapping[str, Array]
"""Of every target of a task, which of its samples the model has right."""


def verdicts(
    sequence: TaskSequence, number: int, service: Sequence[OfNodes], candidate: Sequence[OfNodes]
) -> list[dict[str, Any]]:
    """What the earlier tasks say of the model after a task; nothing where targets are too few.

    Args:
        sequence: with its limit.
        number: of the task, from 0.
        service: what targets had right, task by task, under the model before it.
        candidate: under the model after it.
    """
    names = [each.name for each in sequence.tasks]
    if any(len(service[task]) < FEWEST for task in range(number)):
        return []
    return [
        judge(
            add_up(service[task], candidate[task], "accuracy"),
            "accuracy",
            task=names[task],
            against=f"the model after {names[number - 1]}",
            limit=sequence.limit,
            comparisons=number,
        ).to_dict()
        for task in range(number)
    ]


def gate_summary(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How many updates of all repeats would be released, in numbers and in a line; None: no gate.

    Args:
        repeats: as `run_sequence` returns them, with `gate`: of every update its verdicts.

    Example:
        >>> falls = {"blocked": True, "task": "a", "line": "blocked: a falls by 3.0 ± 1.0 points"}
        >>> gate_summary([{"seed": 0, "gate": [[falls]]}, {"seed": 1, "gate": [[]]}])["line"]
        '1 of 2 updates would be released; seed 0: blocked: a falls by 3.0 ± 1.0 points'
    """
    updates = [
        (each["seed"], [found for found in update if found["blocked"]])
        for each in repeats
        for update in each.get("gate", ())
    ]
    if not updates:
        return None
    stopped = [(seed, found) for seed, found in updates if found]
    line = f"{len(updates) - len(stopped)} of {len(updates)} updates would be released"
    if stopped:
        seed, found = stopped[0]
        line += f"; seed {seed}: {found[0]['line']}"
    return {"updates": len(updates), "blocked": len(stopped), "line": line}
