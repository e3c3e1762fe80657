"""Tasks learned one after the other, and what is left of the earlier ones.

| file | what it has |
|---|---|
| `declaration.py` | a sequence as people write it |
| `methods.py` | what is done against forgetting |
| `drawing.py` | who holds what in every task |
| `carrying.py` | what a task takes over from the one before it |
| `replay.py`, `isolation.py` | two remedies beside priors |
| `running.py` | task after task |
| `measures.py` | average accuracy, forgetting, transfer |
| `folder.py`, `reopening.py` | a sequence on disk, and the nodes of one of its tasks |
| `ready/` | sequences that come along |
"""

from fedmeta.studies.sequences.declaration import TaskSequence, TaskSettings, read_sequence, ready
from fedmeta.studies.sequences.measures import measured
from fedmeta.studies.sequences.methods import Method
from fedmeta.studies.sequences.running import run_sequence

__all__ = [
    "Method",
    "TaskSequence",
    "TaskSettings",
    "measured",
    "read_sequence",
    "ready",
    "run_sequence",
]
