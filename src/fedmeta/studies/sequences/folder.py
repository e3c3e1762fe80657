"""A sequence on disk.

declaration.json           what was asked for: all that is needed to go on after an interruption
METHOD/seed-0/1-TASK/ …    every task of every seed is a run folder
sequence.json              what came of it: accuracy matrices and measures with intervals
report.html                the same for people
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmeta.core.errors import RunFolderError
from fedmeta.core.serialization import serialize
from fedmeta.core.storage import read_json, seal, unseal, write_json, writing
from fedmeta.core.versions import versions
from fedmeta.studies.sequences.declaration import TaskSequence, sequence_from
from fedmeta.studies.sequences.gating import gate_summary
from fedmeta.studies.sequences.measures import Repeat, mean_matrix, measured
from fedmeta.studies.sequences.methods import Method
from fedmeta.studies.sequences.one_head import CLASS_INCREMENTAL, TASK_INCREMENTAL

FORMAT = 1
MATRICES = ("accuracy", "precise", CLASS_INCREMENTAL, TASK_INCREMENTAL)
FILE, DECLARED = "sequence.json", "declaration.json"


def begin(
    folder: Path, sequence: TaskSequence, methods: Sequence[str], seeds: Sequence[int]
) -> None:
    """Make the folder of a new sequence; one that is not empty is refused.

    Args:
        folder: its place.
        sequence: what is learned.
        methods: the methods that are compared.
        seeds: of the repeats.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(
            f"{folder} is not empty", "continue it with --resume, or choose another --out"
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    table = {**serialize(sequence), "method": str(sequence.method)}
    asked = {"format": FORMAT, "name": table.pop("name"), "sequence": table}
    write_json(folder / DECLARED, {**asked, "methods": list(methods), "seeds": list(seeds)})


def declared(folder: Path) -> tuple[TaskSequence, list[str], list[int]]:
    """What was asked for in a folder: sequence, methods and seeds."""
    file = folder / DECLARED
    if not file.exists():
        raise RunFolderError(f"{folder} holds no sequence (no {DECLARED})", "check the path")
    content = read_json(file, "declaration of the sequence")
    try:
        if content["format"] != FORMAT:
            raise RunFolderError(
                f"{file} has format {content['format']!r}, this version reads {FORMAT}",
                "use the version of fedmeta that wrote it",
            )
        sequence = sequence_from(content["sequence"], content["name"])
        return sequence, list(content["methods"]), list(content["seeds"])
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{file} is damaged ({error!r})", "restore the file") from error


def conclude(
    folder: Path,
    sequence: TaskSequence,
    seeds: Sequence[int],
    found: Mapping[str, Sequence[Repeat]],
) -> dict[str, Any]:
    """Write sequence.json and return what it says.

    Args:
        folder: of the sequence.
        sequence: what was learned.
        seeds: of the repeats.
        found: by method, as `run_sequence` returns it.
    """
    result = {
        "format": FORMAT,
        "name": sequence.name,
        "title": sequence.title or sequence.name,
        "tasks": [task.name for task in sequence.tasks],
        "seeds": list(seeds),
        "versions": versions(),
        "methods": {name: _of_method(sequence, name, each) for name, each in found.items()},
    }
    unseal(folder)
    write_json(folder / FILE, result)
    seal(folder)
    return result


def _of_method(sequence: TaskSequence, name: str, repeats: Sequence[Repeat]) -> dict[str, Any]:
    kind = Method.parse(name).prior
    which = [each for each in MATRICES if any(each in one for one in repeats)] or MATRICES[:1]
    gate = gate_summary(repeats)
    return {
        **({} if gate is None else {"gate": gate}),
        "strength": None if kind is None else sequence.using(name).pull,
        "measures": {each: measured(repeats, each) for each in which},
        "matrix": {each: mean_matrix(repeats, each) for each in which},
        "repeats": list(repeats),
    }
