"""The nodes of a task that was learned in a sequence, drawn once more as they were."""

from __future__ import annotations

from pathlib import Path

from fedmeta.core.errors import RunFolderError
from fedmeta.data.federation import Federation
from fedmeta.studies.sequences.carrying import trained_nodes
from fedmeta.studies.sequences.drawing import draw
from fedmeta.studies.sequences.folder import DECLARED, declared


def in_sequence(run: Path) -> bool:
    """Whether a run folder lies where a sequence keeps its tasks: METHOD/seed-0/1-TASK."""
    return (run.resolve() / "../../.." / DECLARED).is_file()


def task_federation(run: Path) -> Federation:
    """The nodes that a task of a sequence was learned on, its targets among them.

    Args:
        run: its folder, for which `in_sequence` holds.
    """
    place = run.resolve()
    sequence, _, _ = declared(place.parents[2])
    method, seed, task = place.parts[-3:]
    try:
        number, repeat = int(task.partition("-")[0]) - 1, int(seed.removeprefix("seed-"))
    except ValueError:
        number, repeat = -1, 0
    if not 0 <= number < len(sequence.tasks):
        raise RunFolderError(
            f"{run} is not a task of the sequence around it", "give it back its name"
        )
    sequence = sequence.using(method)
    drawn = draw(sequence, repeat)
    return (
        drawn.joint() if sequence.method.joint else trained_nodes(sequence, number, repeat, drawn)
    )
