"""Running cells one after the other: what is there already is kept, what is missing is trained."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from experiments.cell import Cell, Key, budget, built, stored_settings
from experiments.results import Result, Results, machine_words, point_table
from experiments.same_runs import differ_in_rounds_at_most, results_by_runs, runs_of
from experiments.sequences import train_sequence
from experiments.training import Progress, federation, train_cell
from experiments.tuning import further_out, search, tried_before
from experiments.two_tasks import search_strength, train_two_tasks
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table
from fedmeta.core.errors import FedmetaError, SettingError
from fedmeta.core.versions import versions
from fedmeta.studies.sequences.declaration import TaskSequence
from fedmeta.training.ending import gradient_evaluations

_OF_A_RUN = ("versions", "machine", "precision", "date", "seconds")  # not of what is declared

State = Literal["done", "unfinished", "outdated", "to run", "cannot run"]


@dataclass(frozen=True)
class Plan:
    """How cells are run.

    Args:
        results: where results lie.
        machine: settings that say where data lie and what computes, not what is computed.
        force: run again what has a current result.
        seconds: start no further cell after so long; None: no limit.
        others: cells whose results are taken where they come to the same runs.
    """

    results: Results
    machine: Table = field(default_factory=dict)
    force: bool = False
    seconds: float | None = None
    others: Sequence[Cell] = ()


@dataclass(frozen=True)
class Ended:
    """How it went with a cell."""

    cell: Cell
    state: Literal["ran", "same", "kept", "failed", "no time"]
    seconds: float = 0.0
    problem: str = ""


def selected(cells: Sequence[Cell], patterns: Iterable[str]) -> list[Cell]:
    """The cells whose path fits one of the patterns, and the tuning cells they rest on.

    Example:
        >>> cells = [Cell(("rho", "cifar10", "x1"), {}, 1), Cell(("rho", "cifar100", "x1"), {}, 1)]
        >>> [cell.path for cell in selected(cells, ["*/cifar10/*"])]
        ['rho/cifar10/x1']
    """
    wanted = list(patterns)
    if not wanted:
        return list(cells)
    fit = [each for each in cells if any(fnmatchcase(each.path, p) for p in wanted)]
    if not fit:
        raise SettingError(f"no cell fits {' or '.join(wanted)}", "see --list")
    keys = {each.key for each in fit}
    rests_on = {each.key: each.tuned for each in cells if each.tuned is not None}
    while missing := {rests_on[key] for key in keys if key in rests_on} - keys:
        keys |= missing
    return [each for each in cells if each.key in keys]


def state(cell: Cell, results: Results) -> State:
    """Whether a cell has a result, and whether that is still what it declares.

    A search is unfinished as long as its best point lies at an end with values beyond it.
    """
    try:
        cell.build()
        if (found := results.current(cell)) is not None:
            on = cell.grid and further_out(cell, found["trials"]) is not None
            return "unfinished" if on else "done"
    except FedmetaError:
        return "cannot run"
    return "to run" if results.read(cell.key) is None else "outdated"


def run_cells(cells: Sequence[Cell], plan: Plan, progress: Progress) -> Iterator[Ended]:
    """Run what has no current result. A cell that cannot be run does not stop the others.

    Args:
        cells: tuning cells before those that rest on them.
        plan: where, on what and for how long.
        progress: given a label, the callbacks of its training.
    """
    started = time.monotonic()
    known = {} if plan.force else results_by_runs(plan.others, plan.results)
    missing: dict[Key, Ended] = {}  # what was not run, though it is asked for
    passed: set[Key] = set()  # what others have trained on their way

    def not_run(ended: Ended) -> Ended:
        if plan.force or plan.results.current(ended.cell) is None:  # else what it found holds
            missing[ended.cell.key] = ended
        return ended

    for place, cell in enumerate(cells):
        if cell.key in passed:
            yield Ended(cell, "same")
        elif cell.tuned in missing:
            yield not_run(replace(missing[cell.tuned], cell=cell, seconds=0.0))
        elif not plan.force and state(cell, plan.results) == "done":
            yield Ended(cell, "kept")
        else:
            begun = time.monotonic()
            late = plan.seconds is not None and begun - started > plan.seconds
            later = [each for each in cells[place + 1 :] if each.key not in passed]
            try:
                if _taken(cell, plan, known):
                    yield Ended(cell, "same")
                elif late:
                    yield not_run(Ended(cell, "no time"))
                else:
                    trained = _run(cell, later, plan, known, progress)
                    passed |= {each.key for each in trained}
                    yield Ended(cell, "ran", time.monotonic() - begun)
            except FedmetaError as error:
                failed = Ended(cell, "failed", time.monotonic() - begun, str(error))
                yield not_run(Ended(cell, "no time") if late else failed)


class Ready(NamedTuple):
    """A cell as it is about to be trained. Its search may come to another point meanwhile."""

    cell: Cell
    point: Table | None
    settings: RunSpec

    @property
    def runs(self) -> str | None:
        """What its runs are, see `same_runs`."""
        return runs_of(self.cell, self.settings)


def _ready(cell: Cell, plan: Plan) -> Ready:
    """At the tuned point and with the final number of rounds."""
    point = plan.results.point(cell)
    if cell.tuned is not None and point is None:
        search = "/".join(cell.tuned)
        searched = plan.results.read(cell.tuned) is not None
        what_to_do = f"every run of {search} diverged: give it another grid"
        raise SettingError(
            f"{cell.path} has no tuned settings", what_to_do if searched else f"run {search}"
        )
    settings = cell.build(point_table(cell, point), plan.machine)
    return Ready(cell, point, settings if cell.equal is None else _scaled(cell, settings, plan))


def _taken(cell: Cell, plan: Plan, known: dict[str, Result]) -> bool:
    """Write the result of a cell whose runs are known; whether they are."""
    ready = _ready(cell, plan)
    same = known.get(ready.runs or "")
    if same is None:
        return False
    _keep(ready, {name: same[name] for name in (*_OF_A_RUN, "repeats")}, plan, known)
    return True


def _run(
    cell: Cell,
    later: Sequence[Cell],
    plan: Plan,
    known: dict[str, Result],
    progress: Progress,
) -> list[Cell]:
    """Train a cell and write its result, and those of later ones that its training passes.

    Returns:
        All of them. Their runs are known then.
    """
    begun, ready = time.monotonic(), _ready(cell, plan)
    if ready.runs is None:
        found = {cell.key: _found(ready, plan, progress)}
        group = [ready]
    else:
        group = [ready, *_on_the_way(ready, later, plan, known)]
        stops = [each.settings.training.rounds for each in group[1:]]
        records = train_cell(cell, ready.settings, stops, progress(cell.path))
        group = [each for each in group if each.settings.training.rounds in records]
        found = {
            each.cell.key: {"repeats": records[each.settings.training.rounds]} for each in group
        }
    seconds = {"seconds": round(time.monotonic() - begun, 1)}
    for each in group:
        _keep(each, seconds | found[each.cell.key], plan, known)
    return [each.cell for each in group]


def _keep(ready: Ready, found: Mapping[str, Any], plan: Plan, known: dict[str, Result]) -> None:
    """Write a result, and know its runs."""
    about = description(ready.cell, ready.point, ready.settings.execution)
    result = {**about, **found}
    plan.results.write(ready.cell.key, result)
    if ready.runs is not None:
        known.setdefault(ready.runs, result)


def _on_the_way(
    ready: Ready, later: Sequence[Cell], plan: Plan, known: Mapping[str, Result]
) -> list[Ready]:
    """Later cells to run that train as a cell does, but end before or after it."""
    wanted = ("to run", "outdated", "done") if plan.force else ("to run", "outdated")
    found = []
    for cell in later:
        if differ_in_rounds_at_most(ready.cell, cell) and state(cell, plan.results) in wanted:
            try:
                each = _ready(cell, plan)
            except FedmetaError:  # as it will say itself in its turn
                continue
            if each.point == ready.point and each.runs not in known:
                found.append(each)
    return found


def _found(ready: Ready, plan: Plan, progress: Progress) -> dict[str, Any]:
    """What a search or tasks in a row come to."""
    cell, point, _ = ready
    if isinstance(cell.tasks, TaskSequence):
        return train_sequence(cell, point, plan.machine, progress)
    if cell.grid and cell.tasks is not None:
        return search_strength(cell, plan.machine, progress)
    if cell.grid:
        before = [] if plan.force else tried_before(cell, plan.results)
        return search(cell, point or {}, plan.machine, progress, before)
    return {"repeats": train_two_tasks(cell, point, plan.machine, progress)}


def description(cell: Cell, point: Table | None, execution: Execution) -> dict[str, Any]:
    """What is kept of how a result came about."""
    return {
        "key": list(cell.key),
        "digest": cell.digest(),
        "settings": stored_settings(cell.build(point_table(cell, point))),
        "point": point,
        "equal": budget(built(cell.equal_settings)) if cell.equal else None,
        "seeds": list(cell.seeds),
        "versions": versions(),
        "machine": machine_words(execution.device),
        "precision": execution.precision,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _scaled(cell: Cell, settings: RunSpec, plan: Plan) -> RunSpec:
    """As many rounds as cost the gradient evaluations of another cell."""
    other = built(cell.equal_settings, plan.machine)
    gradients = other.training.rounds * _cost(other)
    rounds = max(1, round(gradients / _cost(settings)))
    return replace(settings, training=replace(settings.training, rounds=rounds))


def _cost(settings: RunSpec) -> float:
    """Of a round for a node, in gradients over all of its samples."""
    return gradient_evaluations(settings.algorithm, federation(settings.data, 0))
