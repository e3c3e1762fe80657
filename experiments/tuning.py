"""Tuning cells: settings that are searched for on held-out source nodes, and their table.

Judged as by `fedmeta.studies.tune`, the repeats of a point trained together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from experiments.cell import Cell, Key
from experiments.experiment import Found, Summary
from experiments.names import PARTITIONS, named
from experiments.results import Results, machine_words, point_table
from experiments.statistics import rounded
from experiments.tables import leaves, markdown
from experiments.training import Progress, execution_of, federation, short, train_seeds
from fedmeta.algorithms import PFedMe
from fedmeta.algorithms.learners import Baseline
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table
from fedmeta.core.errors import DivergedError
from fedmeta.data import Federation
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.studies.search import Trial, best_point
from fedmeta.studies.search import search as search_points
from fedmeta.studies.tune import HELD_OUT, grid
from fedmeta.training.run import Outcome


def search(
    cell: Cell,
    base: Table,
    machine: Table,
    progress: Progress,
    known: Sequence[Trial] = (),
) -> dict[str, Any]:
    """Try every point of the grid, and beyond it where the best one lies at an end.

    The federation is drawn once and its targets are taken out before anything is trained or
    scaled. Every repeat holds out another fifth of the sources, which judges, and starts from
    other weights. A point with a diverged run is out, unless all points have one: then those with
    the fewest are compared. Points that differ only in how targets adapt, where training does not
    look at that, are trained once.

    Args:
        cell: with its grid.
        base: what all points have in common: the best point of an earlier search, or nothing.
        machine: settings of the machine.
        progress: given a label, the callbacks of a point.
        known: trials that need not be repeated, see `tried_before`.

    Returns:
        The `grid`, the `trials`, and the `best` point, if any finished.
    """
    trained: dict[str, list[Outcome]] = {}

    def attempt(point: Table) -> Trial:
        if before := [trial for trial in known if trial["point"] == point]:
            return before[0]
        return _attempted(cell, point, machine, progress, trained)

    points = [{**base, **each} for each in grid(cell.grid)]
    trials = search_points(points, attempt, partial(further_out, cell))
    return {"grid": dict(cell.grid), "trials": trials, "best": best_point(trials)}


def _attempted(
    cell: Cell,
    point: Table,
    machine: Table,
    progress: Progress,
    trained: dict[str, list[Outcome]],
) -> Trial:
    """What held-out nodes reach with a point; `trained` has the trainings so far."""
    settings = cell.build(point_table(cell, point), machine)
    data = replace(settings.data_settings, scaling_from="sources")  # the pool has the targets
    drawn = federation(data, settings.training.seed)
    nodes = {seed: drawn.hold_out(HELD_OUT, seed) for seed in cell.seeds}
    label = ", ".join(f"{name}={value}" for name, value in point.items())
    alike = _training_of(settings)
    if alike not in trained:
        callbacks = progress(f"{cell.path} {label}")
        trained[alike] = train_seeds(replace(settings, data=data), nodes, callbacks)
    pairs = zip(nodes.values(), trained[alike], strict=True)
    reached = [_judged(settings, drawn_for, outcome) for drawn_for, outcome in pairs]
    values = [each for each in reached if each is not None]
    mean, execution = interval(values).mean if values else None, settings.execution
    about = {"machine": machine_words(execution.device), "precision": execution.precision}
    return {"point": point, "values": values, "mean": mean, **about}


def further_out(cell: Cell, trials: Sequence[Trial]) -> Table | None:
    """The point to try next because the best one lies at an end of what was tried; None: none.

    Args:
        cell: says what lies beyond its grid.
        trials: so far.

    Example:
        >>> cell = Cell(("tuning", "x"), {}, 1, beyond={"step_size": [0.001, 0.003]})
        >>> one = {"point": {"step_size": 0.01}, "values": [0.8], "mean": 0.8}
        >>> other = {"point": {"step_size": 0.03}, "values": [0.7], "mean": 0.7}
        >>> further_out(cell, [one, other])
        {'step_size': 0.003}
    """
    if not cell.beyond or (best := best_point(trials)) is None:
        return None
    for name, values in cell.beyond.items():
        tried = tried_along(name, best, trials)
        below = [value for value in values if value < min(tried) == best[name]]
        above = [value for value in values if value > max(tried) == best[name]]
        if below or above:
            return {**best, name: max(below) if below else min(above)}
    return None


def tried_along(name: str, point: Table, trials: Sequence[Trial]) -> list[Any]:
    """Values of a setting that were tried with all else as a point has it.

    Example:
        >>> points = [{"a": 1, "b": 2}, {"a": 3, "b": 2}, {"a": 5, "b": 4}]
        >>> tried_along("a", {"a": 1, "b": 2}, [{"point": point} for point in points])
        [1, 3]
    """
    return [each["point"][name] for each in trials if {**each["point"], name: point[name]} == point]


def tried_before(cell: Cell, results: Results) -> list[Trial]:
    """The trials of an earlier search that differs from this one in the values of its grid alone.

    Args:
        cell: with its grid.
        results: where the earlier one may lie.
    """
    found = results.read(cell.key)
    if found is None or not all(
        cell.grid.keys() <= trial["point"].keys() for trial in found["trials"]
    ):
        return []
    about = {"machine": found["machine"], "precision": found["precision"]}
    trials = [{**about, **trial} for trial in found["trials"]]  # the last word on what ran where
    values = {name: [trial["point"][name] for trial in trials] for name in cell.grid}
    then = found.get("grid") or {name: [*dict.fromkeys(each)] for name, each in values.items()}
    return trials if results.current(replace(cell, grid=then)) is not None else []


def _training_of(settings: RunSpec) -> str:
    """All that decides how θ is trained, as text."""
    algorithm, text = settings.algorithm, str(settings)
    looks = isinstance(algorithm, PFedMe) or algorithm.inner.learned != "none"
    if not isinstance(algorithm, Baseline) or looks:
        return text
    return text.replace(str(algorithm.inner), str(algorithm.inner.scope))  # which names the head


def _judged(settings: RunSpec, nodes: Federation, outcome: Outcome) -> float | None:
    """What the held-out nodes reach by the adaptation of this point, or None if it diverged.

    More is better: of values it is their mean squared error, negative.
    """
    if isinstance(outcome, DivergedError):
        return None
    model, found = outcome.meta_model, outcome.evaluation
    inner = settings.algorithm.inner
    # Learned step sizes are the model's own. Other numbers of steps may have been judged already.
    own = model.adaptation.factors is not None
    alike = own or replace(inner, steps=model.adaptation.steps) == model.adaptation
    steps = str(model.adaptation.steps if own else inner.steps)
    if found is None or not alike or steps not in found.summary():
        model = replace(model, adaptation=inner)
        execution, seed = execution_of(outcome), outcome.summary["seed"]
        found = evaluate_model(model, nodes, [inner.steps], execution=execution, seed=seed)
    reached = short(found.summary()[steps]["mean"])
    return -reached if reached is not None and found.metric == "mse" else reached


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """What every search came to."""
    for key, result in found.items():
        judged = [trial for trial in result["trials"] if trial["point"] == result["best"]]
        best: dict[str, Any] = judged[0] if judged else {"mean": None, "values": []}
        seeds: list[int] = result["seeds"]
        finished: list[float] | list[int] = best.get("values", seeds)  # sequences have none
        yield (
            key,
            {
                "best": result["best"],
                "held_out": None if best["mean"] is None else rounded(100 * best["mean"]),
                "points": len(result["trials"]),
                "at_an_end": _at_an_end(result["trials"], result["best"]),
                "n": len(seeds),
                "diverged": len(seeds) - len(finished),
            },
        )


def _at_an_end(trials: Sequence[dict[str, Any]], best: dict[str, Any] | None) -> list[str]:
    """The settings of which the best point has the smallest or the largest value that was tried."""
    ends = []
    for name, value in (best or {}).items():
        tried = set(tried_along(name, best or {}, trials))
        if len(tried) > 1 and value in (min(tried), max(tried)):
            ends.append(f"{name} {'smallest' if value == min(tried) else 'largest'}")
    return ends


def table(summary: Summary) -> str:
    """The points that were chosen on held-out source nodes, of the paper's data sets."""
    rows = []
    for key, found in leaves(summary["tuning"], "points"):
        if key[0] not in PARTITIONS:  # of another page
            continue
        cells = [assigned(found["best"]), _held_out(found), f"{found['points']}"]
        rows.append([*map(named, key), *cells, ", ".join(found["at_an_end"]) or "–"])
    heads = ["partition", "data", "algorithm", "variant", "best point", "held out, %", "points"]
    return markdown([*heads, "at an end of what was tried"], rows)


def _held_out(found: Mapping[str, Any]) -> str:
    lost = f", {found['diverged']} of {found['n']} diverged" if found["diverged"] else ""
    return f"{found['held_out']}{lost}"


def assigned(point: Mapping[str, Any] | None) -> str:
    """A point for people."""
    if point is None:
        return "all diverged"
    return ", ".join(f"{name} = {value}" for name, value in point.items())
