"""What was to hold, and whether it does: computed from the numbers, never typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments import sequence_results
from experiments.cell import Key
from experiments.paper import GOALS, TABLE_1, TABLE_2, TABLE_2_DROPS
from experiments.statistics import Entry, Repeats, paired

OURS, DEFAULT = "admm-fedmeta", "default"
BASELINES = ("fedavg", "per-fedavg")
PARTITIONS = ("fixed-pairs", "random-pairs")
RIVALS = 18
"""Variants to be ahead of: two baselines; paper, tuned, extras; 1, 5 and 10 local updates."""
EQUAL = "-equal"
"""Ends the names of variants that were given as many gradient evaluations as the default."""

INITIALISATIONS = ("pytorch", "truncated-normal")
STARTS, FIXED = 7, 13
"""How many ρ a run with penalty "auto" is started from, and how many fixed ones judge it."""

_NEAR = 1.0  # points from the best fixed ρ


def ahead(repeats: Mapping[Key, Repeats]) -> dict[str, Any]:
    """The default against every other variant of table 1, by partition, data, budget, algorithm.

    Differences are paired by seed and taken on the precise sets. Ahead is what has its whole 95 %
    interval above 0 and no diverged run. Where fewer than two pairs finished because the other
    diverged there is no interval, and ahead is what is not behind.
    """
    table: dict[str, Any] = {}
    for (partition, data, algorithm, variant), theirs in repeats.items():
        ours = repeats.get((partition, data, OURS, DEFAULT))
        if ours is None or (algorithm, variant) == (OURS, DEFAULT):
            continue
        budget = "gradients" if variant.endswith(EQUAL) else "rounds"
        found = paired(ours, theirs, "precise")
        place = table.setdefault(partition, {}).setdefault(data, {}).setdefault(budget, {})
        place.setdefault(algorithm, {})[variant] = {**found, "ahead": _is_ahead(found)}
    return table


def _is_ahead(difference: Entry) -> bool:
    if difference["diverged"]:
        return False
    if difference["ci95"] is None:
        return bool(difference["diverged_other"]) and (difference["mean"] or 0.0) >= 0
    return bool(difference["mean"] - difference["ci95"] > 0)


def goals(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every goal with what was measured; `reached` is None where something was not run yet."""
    return [
        {"goal": goal, "wanted": wanted, "measured": measured, "reached": reached}
        for goal, wanted, measured, reached in (
            *_paper_numbers(summary),
            *_default_numbers(summary),
            *_ahead_of_all(summary),
            *_never_diverges(summary),
            *_forgetting(summary),
            *sequence_results.goals(summary),
        )
    ]


Goal = tuple[str, str, str | None, bool | None]


def _paper_numbers(summary: Mapping[str, Any]) -> Iterator[Goal]:
    for data, algorithms in TABLE_1.items():
        published = algorithms[OURS]["paper"]
        mine = at(summary, "table1", "fixed-pairs", data, OURS, "paper")
        near = None
        if mine is not None:
            room = (mine["ci95"] or 0.0) + (published.width or 0.0)
            near = abs((mine["mean"] or 0.0) - published.mean) <= room
        text = f"preset paper on {data}, fixed pairs: intervals overlap"
        yield text, f"{published.mean:.2f} ± {published.width:.2f}", words(mine), near


def _default_numbers(summary: Mapping[str, Any]) -> Iterator[Goal]:
    for data, goal in GOALS.items():
        mine = at(summary, "table1", "fixed-pairs", data, OURS, DEFAULT)
        reached = None if mine is None else (mine["mean"] or 0.0) >= goal
        yield f"default reaches its mark on {data}, fixed pairs", f"≥ {goal}", words(mine), reached


def _ahead_of_all(summary: Mapping[str, Any]) -> Iterator[Goal]:
    for partition in PARTITIONS:
        for data in GOALS:
            for budget in ("rounds", "gradients"):
                place = at(summary, "ahead", partition, data, budget) or {}
                rows = [row for name in BASELINES for row in place.get(name, {}).values()]
                won = sum(row["ahead"] for row in rows)
                verdict = False if won < len(rows) else (True if won == RIVALS else None)
                text = f"default ahead on {data}, {partition}, equal {budget}"
                measured = f"of {won} of {len(rows)}" if rows else None
                yield text, f"of all {RIVALS} baseline variants", measured, verdict


def _never_diverges(summary: Mapping[str, Any]) -> Iterator[Goal]:
    """No run from any start diverges, and the mean over starts is near the best fixed ρ."""
    found = summary["robustness"]
    places = [
        (partition, data, initialisation)
        for partition in PARTITIONS
        for data in GOALS
        for initialisation in INITIALISATIONS
    ]
    rows = {place: _of_kind(at(found, *place), "auto") for place in places}
    runs = [row for mine in rows.values() for row in mine]
    lost, count = (sum(row[name] for row in runs) for name in ("diverged", "n"))
    complete = all(len(mine) == STARTS for mine in rows.values())
    verdict = False if lost else (True if complete else None)
    measured = f"{lost} of {count}" if count else None
    yield "penalty auto: no run diverges, from any start", "0", measured, verdict
    for place, mine in rows.items():
        fixed = [row["mean"] or 0.0 for row in _of_kind(at(found, *place), "fixed")]
        means = [row["mean"] or 0.0 for row in mine]
        text = f"penalty auto near the best fixed ρ: {', '.join(place)}"
        if len(means) < STARTS or len(fixed) < FIXED:
            yield text, f"within {_NEAR:g} point", None, None
            continue
        mean, best = sum(means) / len(means), max(fixed)
        found_here = f"{mean:.2f} (worst start {min(means):.2f})"
        yield text, f"≥ {best - _NEAR:.2f}", found_here, mean >= best - _NEAR


def _of_kind(rows: Mapping[str, Entry] | None, kind: str) -> list[Entry]:
    return [row for name, row in (rows or {}).items() if name.startswith(kind)]


def _forgetting(summary: Mapping[str, Any]) -> Iterator[Goal]:
    for data, drop in TABLE_2_DROPS.items():
        mine = at(summary, "table2", data, f"{OURS}-{DEFAULT}")
        for task, published in zip(("prior", "new"), TABLE_2[data][OURS], strict=True):
            found = None if mine is None else mine[task]
            reached = (
                None if not found else found["mean"] is not None and found["mean"] >= published
            )
            yield f"table 2, {data}, {task} task", f"≥ {published}", words(found), reached
        lost = None if mine is None else mine["drop"]
        kept = None if not lost or lost["mean"] is None else lost["mean"] <= drop
        yield f"table 2, {data}: drop from θ_p", f"≤ {drop}", words(lost), kept


def words(found: Entry | None) -> str | None:
    """Mean ± half width, and how many diverged, for people.

    Example:
        >>> words({"mean": 95.5, "ci95": 0.4, "n": 10, "diverged": 1})
        '95.50 ± 0.40, 1 of 10 diverged'
    """
    if found is None:
        return None
    width = "" if found["ci95"] is None else f" ± {found['ci95']:.2f}"
    text = "–" if found["mean"] is None else f"{found['mean']:.2f}{width}"
    lost = found["diverged"]
    return f"{text}, {lost} of {found['n']} diverged" if lost else text


def at(table: Mapping[str, Any], *path: str) -> Any:
    """What lies at a path of tables within tables; None if nothing does."""
    place: Any = table
    for name in path:
        if not isinstance(place, Mapping) or name not in place:
            return None
        place = place[name]
    return place
