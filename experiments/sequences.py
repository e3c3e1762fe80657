"""Task sequences as an experiment: one cell per sequence and method, and one to choose each λ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.cell import Cell, Key
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.tables import Table, merged
from fedmeta.core.errors import SettingError
from fedmeta.studies.sequences.declaration import TaskSequence, read_sequence
from fedmeta.studies.sequences.measures import measured
from fedmeta.studies.sequences.methods import Method
from fedmeta.studies.sequences.running import run_sequence
from fedmeta.studies.tune import HELD_OUT
from fedmeta.training.callbacks import Callback

EXPERIMENT = "sequences"
_ROOM = 1.0  # points that λ may cost on new tasks


def sequence_cells(content: Table, repeats: int, tuning: str, *, quick: bool = False) -> list[Cell]:
    """All cells of the experiment, those that choose λ before those that take it.

    Args:
        content: of sequences.toml.
        repeats: seeds per cell.
        tuning: the folder of the results of tuning cells.
        quick: the small version.
    """
    part = content["quick"] if quick else content
    rule, cells = content["strength"], []
    for name, methods in part["methods"].items():
        sequence = read_sequence(name, part.get("settings"))
        for method in methods:
            key: Key = (EXPERIMENT, name, method)
            chosen, kind = sequence.using(method), Method.parse(method).prior
            tuned = None if kind is None else (tuning, EXPERIMENT, name, ADMMFedMeta.name, method)
            if tuned is not None and kind is not None:
                values = rule[kind][::3] if quick else rule[kind]
                grid = {"strength": values}
                count = repeats if quick else int(rule["repeats"])
                cells.append(_cell(tuned, chosen, count, grid=grid))
            cells.append(_cell(key, chosen, repeats, tuned=tuned))
    return cells


def _cell(key: Key, sequence: TaskSequence, repeats: int, **further: Any) -> Cell:
    return Cell(key, dict(sequence.settings), repeats, tasks=sequence, **further)


def learn(
    cell: Cell,
    point: Mapping[str, Any] | None,
    machine: Table,
    progress: Callable[[str], Sequence[Callback]],
) -> dict[str, Any]:
    """Run a cell: the `repeats` of a sequence, or the `trials` and the `best` λ.

    Args:
        cell: with its sequence.
        point: λ as its tuning cell found it; None for a method without a prior.
        machine: settings of the machine.
        progress: given a label, the callbacks of a training.
    """
    sequence = cell.tasks
    assert isinstance(sequence, TaskSequence)
    sequence = replace(sequence, settings=merged([sequence.settings, machine]))
    if cell.grid:
        return _search(cell, sequence, progress)
    if point is not None:
        sequence = sequence.using(str(sequence.method), float(point["strength"]))
    found = run_sequence(
        sequence, cell.seeds, progress=lambda label: progress(f"{cell.path} {label}")
    )
    return {"repeats": found}


def _search(
    cell: Cell, sequence: TaskSequence, progress: Callable[[str], Sequence[Callback]]
) -> dict[str, Any]:
    """Every λ on held-out source nodes; targets are not looked at."""

    def tried(strength: float) -> dict[str, Any]:
        return measured(
            run_sequence(
                sequence.using(str(sequence.method), strength),
                cell.seeds,
                held_out=HELD_OUT,
                progress=lambda label: progress(f"{cell.path} λ={strength:g} {label}"),
            )
        )

    trials: list[dict[str, Any]] = []
    for strength in cell.grid["strength"]:
        measures = tried(strength)
        lost = measures["diverged"] > 0
        trials.append(
            {
                "point": {"strength": strength},
                "mean": None if lost else measures["average"]["mean"],
                "new": None if lost else measures["new"]["mean"],
                "forgetting": None if lost else measures["forgetting"]["mean"],
            }
        )
    return {"trials": trials, "best": _best(trials)}


def _best(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The point with the best average accuracy among those that leave new tasks alone.

    These are the λ whose accuracy on new tasks is at most a point below that of λ = 0. One with a
    diverged run is out.

    Example:
        >>> tried = [
        ...     {"point": {"strength": 0.0}, "mean": 0.6, "new": 0.90},
        ...     {"point": {"strength": 0.1}, "mean": 0.7, "new": 0.895},
        ...     {"point": {"strength": 1.0}, "mean": 0.8, "new": 0.5},
        ... ]
        >>> _best(tried)
        {'strength': 0.1}
    """
    finished = [trial for trial in trials if trial["mean"] is not None]
    free = [trial for trial in finished if trial["point"]["strength"] == 0]
    if not free:
        raise SettingError("λ = 0 diverged or was not tried", "have 0 among the values of λ")
    least = free[0]["new"] - _ROOM / 100
    fit = [trial for trial in finished if trial["new"] >= least]
    return dict(max(fit, key=lambda trial: float(trial["mean"]))["point"])
