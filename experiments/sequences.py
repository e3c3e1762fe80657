"""Task sequences: one cell per sequence and method, and one to choose each λ.

Rivals that move at their nodes have step sizes, too. Those are chosen before λ, once for all of
them: without λ they are the same FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from experiments.cell import Cell, Key
from experiments.declaration import TUNING, Declaration
from experiments.experiment import Experiment, Found, Goal, Summary
from experiments.names import named
from experiments.statistics import Entry, Repeats, entry, paired_by
from experiments.tables import interval_text, markdown, shown
from experiments.training import Progress
from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.config.toml_files import Table, merged, nested
from fedmeta.core.errors import SettingError
from fedmeta.studies.search import Point, Trial, search
from fedmeta.studies.sequences.declaration import TaskSequence, read_sequence
from fedmeta.studies.sequences.measures import MEASURES, measured
from fedmeta.studies.sequences.methods import AUTO, JOINT, NONE, REPLAY, RIVALS, Method
from fedmeta.studies.sequences.one_head import CLASS_INCREMENTAL
from fedmeta.studies.sequences.running import run_sequence
from fedmeta.studies.tune import HELD_OUT, grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STRENGTH = "strength"  # λ in the points of a search; what else they hold are step sizes
_ROOM = 1.0  # points that λ may cost on new tasks
_SPLIT, _ONE_HEAD = "split-cifar10", "class-incremental-cifar100-10"  # what goals are about
_HARD = 5.0  # points that must be forgotten without a remedy for a sequence to say something


def sequence_cells(declared: Declaration) -> list[Cell]:
    """All cells of the experiment, those that choose λ before those that take it."""
    content, quick = declared.content, declared.quick
    part = content["quick"] if quick else content
    rule, steps, cells = content["strength"], part["steps"], []
    for name, methods in part["methods"].items():
        sequence = read_sequence(name, part.get("settings"))
        repeats = declared.repeats if quick else content["seeds"].get(name, declared.repeats)
        count = repeats if quick else int(rule["repeats"])
        place: Key = (TUNING, declared.name, name)
        stepped: Key = (*place, FedAvg.name, "steps")
        if rivals := [method for method in methods if method in RIVALS]:
            plain = sequence.using(rivals[0], 0.0)
            cells.append(_cell(stepped, plain, count, grid=steps))
        for method in methods:
            key: Key = (declared.name, name, method)
            chosen, kind = sequence.using(method), Method.parse(method).prior
            tuned = None
            if kind in rule:
                tuned = (*place, ADMMFedMeta.name, method)
                grid = {_STRENGTH: rule[kind][::3] if quick else rule[kind]}
                before = stepped if method in RIVALS else None
                cells.append(_cell(tuned, chosen, count, grid=grid, tuned=before))
            cells.append(_cell(key, chosen, repeats, tuned=tuned))
    return cells


def _cell(key: Key, sequence: TaskSequence, repeats: int, **further: Any) -> Cell:
    return Cell(key, dict(sequence.settings), repeats, tasks=sequence, **further)


def train_sequence(
    cell: Cell,
    point: Mapping[str, Any] | None,
    machine: Table,
    progress: Progress,
) -> dict[str, Any]:
    """Run a cell: the `repeats` of a sequence, or the `trials` and the `best` λ.

    Args:
        cell: with its sequence.
        point: λ and step sizes as its tuning cells found them; None where nothing was searched.
        machine: settings of the machine.
        progress: given a label, the callbacks of a training.
    """
    sequence = cell.tasks
    assert isinstance(sequence, TaskSequence)
    sequence = replace(sequence, settings=merged([sequence.settings, machine]))
    if cell.grid:
        return _search(cell, sequence, point or {}, progress)
    if point is not None:
        sequence = _at(sequence, point)
    found = run_sequence(
        sequence, cell.seeds, progress=lambda label: progress(f"{cell.path} {label}")
    )
    return {"repeats": found}


def _at(sequence: TaskSequence, point: Mapping[str, Any]) -> TaskSequence:
    """The sequence with the λ and the step sizes of a point."""
    steps = {name: value for name, value in point.items() if name != _STRENGTH}
    if steps:
        own = {"algorithms": {str(sequence.method.rival): nested(steps)}}
        sequence = replace(sequence, settings=merged([sequence.settings, own]))
    if _STRENGTH in point:
        sequence = sequence.using(str(sequence.method), float(point[_STRENGTH]))
    return sequence


def _search(
    cell: Cell, sequence: TaskSequence, base: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """Every point on held-out source nodes, on top of what was found; targets are not looked at."""

    def judge(point: Point) -> Trial:
        label = ", ".join(f"{name}={value}" for name, value in point.items())
        measures = measured(
            run_sequence(
                _at(sequence, point),
                cell.seeds,
                held_out=HELD_OUT,
                progress=lambda task: progress(f"{cell.path} {label} {task}"),
            )
        )
        lost = measures["diverged"] > 0
        return {
            "point": point,
            "mean": None if lost else measures["average"]["mean"],
            "new": None if lost else measures["new"]["mean"],
            "forgetting": None if lost else measures["forgetting"]["mean"],
        }

    trials = search([{**base, **each} for each in grid(cell.grid)], judge)
    best = _best(trials) if _STRENGTH in cell.grid else _best_steps(trials)
    return {"trials": trials, "best": best}


def _best_steps(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The point with the best average accuracy; None: all have diverged.

    Example:
        >>> _best_steps([{"point": {"step_size": 0.1}, "mean": None}])
    """
    finished = [trial for trial in trials if trial["mean"] is not None]
    return max(finished, key=lambda trial: float(trial["mean"]))["point"] if finished else None


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
    free = [trial for trial in finished if trial["point"][_STRENGTH] == 0]
    if not free:
        raise SettingError("λ = 0 diverged or was not tried", "have 0 among the values of λ")
    least = free[0]["new"] - _ROOM / 100
    fit = [trial for trial in finished if trial["new"] >= least]
    return dict(max(fit, key=lambda trial: float(trial["mean"]))["point"])


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """The measures of every method, its λ, and how far it lies behind what needs no choice."""
    for key, result in found.items():
        point = result["point"] or {}
        table = _measures(result["repeats"], point.get(_STRENGTH))
        ours = found.get((*key[:-1], AUTO))
        if ours is not None and key[-1] != AUTO:
            table["behind"] = _paired(ours["repeats"], result["repeats"])
        yield key, table


def _measures(repeats: Repeats, strength: float | None) -> dict[str, Any]:
    """Every measure of a cell in percent, on query sets and ("-precise") on precise sets; and λ."""
    table: dict[str, Any] = {"strength": strength}
    for name in MEASURES:
        for which, ending in (("accuracy", ""), ("precise", "-precise")):
            table[name + ending] = entry(repeats, partial(_measured, name, which))
    table["cost"] = entry(repeats, lambda each: fmean(each["cost"]) if each.get("cost") else None)
    table["one-head"] = entry(repeats, partial(_measured, "average", CLASS_INCREMENTAL))
    return table


def _paired(ours: Repeats, others: Repeats) -> dict[str, Any]:
    """Average accuracy after adaptation, ours minus theirs in points, seed by seed."""
    which = "precise" if any(each.get("precise") for each in ours) else "accuracy"
    return paired_by(ours, others, partial(_measured, "average", which))


def _measured(name: str, which: str, repeat: Mapping[str, Any]) -> float | None:
    found = MEASURES[name](repeat[which]) if repeat.get(which) else None
    return None if found is None else 100 * found


def _rows(summary: Summary) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Sequence, method and measures of every cell, those of precise sets where there are any."""
    for sequence, methods in summary.get("sequences", {}).items():
        for method, found in methods.items():
            yield sequence, method, {**found, **_precise(found)}


def _precise(found: Mapping[str, Any]) -> dict[str, Any]:
    """The measures on precise sets under the names of the others."""
    named = {name: found.get(f"{name}-precise") for name in MEASURES}
    return {name: value for name, value in named.items() if value is not None}


def table(summary: Summary) -> str:
    """What every method keeps of earlier tasks."""
    rows = []
    for sequence, method, found in _rows(summary):
        strength = "–" if found["strength"] is None else f"{found['strength']:g}"
        names = ("average", "forgetting", "new", "forward", "behind", "one-head", "cost")
        cells = ["–" if found.get(name) is None else shown(found[name]) for name in names]
        rows.append([named(sequence), method, strength, *cells])
    heads = ["sequence", "method", "λ", "average, %", "forgetting, points", "new tasks, %"]
    further = ["forward transfer, points", "behind auto, points", "one model for all, %", "L_p"]
    return markdown([*heads, *further], rows)


def plot(figure: Figure, summary: Summary) -> None:
    """Average accuracy of every method, and above it what its new tasks reached."""
    names = list(summary["sequences"])
    figure.set_size_inches(9, 0.6 + 2.6 * len(names))
    panels = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        mine = _methods(summary, name)
        for place, row in enumerate(mine.values()):
            for measure, mark, tint in (("average", "o", "#0a66a8"), ("new", "_", "#c8540a")):
                if (mean := _mean(row, measure)) is not None:
                    width = row[measure]["ci95"] or 0.0
                    axes.errorbar(place, mean, width, fmt=mark, color=tint, capsize=2)
        axes.set_xticks(range(len(mine)), list(mine), rotation=20, ha="right")
        axes.set_title(f"{name}: all tasks at the end (dots), new tasks (dashes)")
        axes.set_ylabel("accuracy, %")


def goals(summary: Summary) -> Iterator[Goal]:
    """What was to hold of split CIFAR-10, and of class-incremental CIFAR-100."""
    found = _methods(summary, _SPLIT)
    free, joint, replay = (found.get(name) for name in (NONE, JOINT, REPLAY))
    lost, before = _mean(free, "forgetting"), _mean(free, "new")
    yield (
        f"{_SPLIT}: forgetting without a remedy, points",
        f"≥ {_HARD:g}",
        _words(free, "forgetting"),
        None if lost is None else lost >= _HARD,
    )
    for method in (AUTO, "outputs"):
        row = found.get(method)
        kept, new = _mean(row, "forgetting"), _mean(row, "new")
        yield (
            f"{_SPLIT}: forgetting with {method} alone, points",
            "≤ a quarter of that without" if lost is None else f"≤ {lost:.2f} / 4",
            _words(row, "forgetting"),
            None if kept is None or lost is None else kept <= lost / 4,
        )
        yield (
            f"{_SPLIT}: accuracy on new tasks with {method} alone",
            "within 1.5 points of that without" if before is None else f"≥ {before:.2f} − 1.5",
            _words(row, "new"),
            None if new is None or before is None else new >= before - 1.5,
        )
    average, all_at_once = _mean(replay, "average"), _mean(joint, "average")
    yield (
        f"{_SPLIT}: average accuracy with replay",
        "within 2 points of joint training" if all_at_once is None else f"≥ {all_at_once:.2f} − 2",
        _words(replay, "average"),
        None if average is None or all_at_once is None else average >= all_at_once - 2,
    )
    found = _methods(summary, _ONE_HEAD)
    for rival in RIVALS:
        row = found.get(rival)
        lead = None if row is None else row["behind"]
        known = lead is not None and lead["mean"] is not None and lead["ci95"] is not None
        yield (
            f"{_ONE_HEAD}: average after adaptation, auto minus {rival}, points",
            "interval above 0",
            _words(row, "behind"),
            lead["mean"] - lead["ci95"] > 0 if lead is not None and known else None,
        )


def _methods(summary: Summary, name: str) -> dict[str, Mapping[str, Any]]:
    return {method: row for sequence, method, row in _rows(summary) if sequence == name}


def _mean(row: Mapping[str, Any] | None, name: str) -> float | None:
    found = None if row is None else row.get(name)
    return None if found is None else found["mean"]


def _words(row: Mapping[str, Any] | None, name: str) -> str | None:
    found: Entry | None = None if row is None else row.get(name)
    if found is None or found["mean"] is None:
        return None
    return interval_text(found["mean"], found["ci95"])


EXPERIMENT = Experiment(summarised, table, plot, cells=sequence_cells)
