"""A small sequence on the digits that come along."""

from __future__ import annotations

from typing import Any

from fedmeta.studies.sequences import TaskSequence
from fedmeta.studies.sequences.declaration import sequence_from

SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "nodes": 6, "samples": [8, 10], "precise": 10},
    "training": {"rounds": 4, "evaluate_every": 0, "checkpoint_every": 1},
    "model": {"hidden": [8]},
    "execution": {"threads": 1},
}


def small(method: str = "none", strength: float | None = None, **further: Any) -> TaskSequence:
    """Three tasks of two classes."""
    tasks = [{"name": f"{a}-{a + 1}", "classes": [a, a + 1]} for a in (0, 2, 4)]
    table = {"tasks": tasks, "settings": SETTINGS, "replay": 4, "platform": 6, **further}
    return sequence_from(table, "small").using(method, strength)
