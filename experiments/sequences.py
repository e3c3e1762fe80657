"""Task sequences: one cell per sequence and method, and one to choose each λ."""

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
from experiments.statistics import Entry, Repeats, entry
from experiments.tables import interval_text, markdown, shown
from experiments.training import Progress
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.toml_files import Table, merged
from fedmeta.core.errors import SettingError
from fedmeta.studies.search import Point, Trial, search
from fedmeta.studies.sequences.declaration import TaskSequence, read_sequence
from fedmeta.studies.sequences.measures import MEASURES, measured
from fedmeta.studies.sequences.methods import JOINT, NONE, PRIORS, Method
from fedmeta.studies.sequences.running import run_sequence
from fedmeta.studies.tune import HELD_OUT, grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_ROOM = 1.0  # points that λ may cost on new tasks
_JUDGED = ("split-cifar10", "split-cifar10-few")  # the second is harder
_HARD = 5.0  # points that must be forgotten without a remedy for a sequence to say something


def sequence_cells(declared: Declaration) -> list[Cell]:
    """All cells of the experiment, those that choose λ before those that take it."""
    content, repeats, quick = declared.content, declared.repeats, declared.quick
    part = content["quick"] if quick else content
    rule, cells = content["strength"], []
    for name, methods in part["methods"].items():
        sequence = read_sequence(name, part.get("settings"))
        for method in methods:
            key: Key = (declared.name, name, method)
            chosen, kind = sequence.using(method), Method.parse(method).prior
            tuned = None if kind is None else (TUNING, *key[:2], ADMMFedMeta.name, method)
            if tuned is not None and kind is not None:
                values = rule[kind][::3] if quick else rule[kind]
                grid = {"strength": values}
                count = repeats if quick else int(rule["repeats"])
                cells.append(_cell(tuned, chosen, count, grid=grid))
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


def _search(cell: Cell, sequence: TaskSequence, progress: Progress) -> dict[str, Any]:
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

    def judge(point: Point) -> Trial:
        measures = tried(point["strength"])
        lost = measures["diverged"] > 0
        return {
            "point": point,
            "mean": None if lost else measures["average"]["mean"],
            "new": None if lost else measures["new"]["mean"],
            "forgetting": None if lost else measures["forgetting"]["mean"],
        }

    trials = search(grid(cell.grid), judge)
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


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """The measures of every method, and its λ."""
    for key, result in found.items():
        point = result["point"] or {}
        yield key, _measures(result["repeats"], point.get("strength"))


def _measures(repeats: Repeats, strength: float | None) -> dict[str, Any]:
    """Every measure of a cell in percent, on query sets and ("-precise") on precise sets; and λ."""
    table: dict[str, Any] = {"strength": strength}
    for name in MEASURES:
        for which, ending in (("accuracy", ""), ("precise", "-precise")):
            table[name + ending] = entry(repeats, partial(_measured, name, which))
    table["cost"] = entry(repeats, lambda each: fmean(each["cost"]) if each.get("cost") else None)
    return table


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
        names = ("average", "forgetting", "new", "forward", "cost")
        cells = ["–" if found[name] is None else shown(found[name]) for name in names]
        rows.append([named(sequence), method, strength, *cells])
    heads = ["sequence", "method", "λ", "average, %", "forgetting, points", "new tasks, %"]
    return markdown([*heads, "forward transfer, points", "L_p"], rows)


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
    """What was to hold of split CIFAR-10, or of the harder one where too little is forgotten."""
    easy, hard = (_methods(summary, name) for name in _JUDGED)
    lost = _mean(easy.get(NONE), "forgetting")
    name, found = (_JUDGED[1], hard) if lost is not None and lost < _HARD else (_JUDGED[0], easy)
    without, joint = _mean(found.get(NONE), "forgetting"), _mean(found.get(JOINT), "average")
    yield (
        f"{name}: forgetting without a remedy, points",
        f"≥ {_HARD:g}",
        _words(found.get(NONE), "forgetting"),
        None if without is None else without >= _HARD,
    )
    prior = _least_forgetting([found[kind] for kind in PRIORS if kind in found])
    yield from _kept(name, "a prior alone", prior, found.get(NONE))
    ours = _chosen(summary, name, found)
    yield from _kept(name, ours or "the best method", found.get(ours or ""), found.get(NONE))
    pairs = [row for method, row in found.items() if "+" in method]
    best = max(pairs, key=lambda row: _mean(row, "average") or 0.0, default=None)
    average = _mean(best, "average")
    yield (
        f"{name}: average accuracy of the best pair of methods",
        "within 5 points of joint training" if joint is None else f"≥ {joint:.2f} − 5",
        _words(best, "average"),
        None if average is None or joint is None else average >= joint - 5,
    )


def _kept(
    name: str, method: str, row: Mapping[str, Any] | None, free: Mapping[str, Any] | None
) -> Iterator[Goal]:
    """At most a third of what is forgotten without a remedy, at two points on new tasks."""
    kept, without = _mean(row, "forgetting"), _mean(free, "forgetting")
    yield (
        f"{name}: forgetting with {method}, points",
        "≤ a third of that without" if without is None else f"≤ {without:.2f} / 3",
        _words(row, "forgetting"),
        None if kept is None or without is None else kept <= without / 3,
    )
    new, before = _mean(row, "new"), _mean(free, "new")
    yield (
        f"{name}: accuracy on new tasks with {method}",
        "within 2 points of that without" if before is None else f"≥ {before:.2f} − 2",
        _words(row, "new"),
        None if new is None or before is None else new >= before - 2,
    )


def _chosen(summary: Summary, name: str, found: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Ours: the method that did best on held-out source nodes, which alone may choose."""
    tuned = summary.get("tuning", {}).get("sequences", {}).get(name, {}).get(ADMMFedMeta.name, {})
    held = {each: row["held_out"] for each, row in tuned.items() if each in found}
    known = {method: value for method, value in held.items() if value is not None}
    return max(known, key=lambda method: known[method], default=None)


def _methods(summary: Summary, name: str) -> dict[str, Mapping[str, Any]]:
    return {method: row for sequence, method, row in _rows(summary) if sequence == name}


def _least_forgetting(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    judged = [row for row in found if _mean(row, "forgetting") is not None]
    return min(judged, key=lambda row: _mean(row, "forgetting") or 0.0, default=None)


def _mean(row: Mapping[str, Any] | None, name: str) -> float | None:
    found = None if row is None else row.get(name)
    return None if found is None else found["mean"]


def _words(row: Mapping[str, Any] | None, name: str) -> str | None:
    found: Entry | None = None if row is None else row.get(name)
    if found is None or found["mean"] is None:
        return None
    return interval_text(found["mean"], found["ci95"])


EXPERIMENT = Experiment(summarised, table, plot, cells=sequence_cells)
