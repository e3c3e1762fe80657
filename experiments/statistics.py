"""Repeats of a cell as means with intervals. Accuracies are in percent, as in the paper's tables.

A mean is taken over the runs that finished, and the number of those that diverged stands beside it:
none is left out, and none is given a number it did not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedmeta.evaluation.intervals import interval

Repeats = Sequence[dict[str, Any]]
Entry = dict[str, Any]


def accuracy(repeats: Repeats, which: str = "accuracy") -> Entry | None:
    """Mean accuracy after the algorithm's own adaptation steps; None if it was not measured.

    Args:
        repeats: as `training.record` gives them.
        which: "accuracy" (the paper's query sets), "precise", or "prior" and "prior_precise" for
            the prior one of two tasks.

    Example:
        >>> run = {"diverged": False, "steps": 1, "accuracy": {"1": 0.5}}
        >>> accuracy([run, run, {"diverged": True}])
        {'mean': 50.0, 'ci95': 0.0, 'n': 3, 'diverged': 1}
    """
    return entry(repeats, lambda each: reached(each, which))


def reached(repeat: dict[str, Any], which: str) -> float | None:
    """Accuracy of one run in percent; None if it diverged or was not judged that way."""
    if repeat["diverged"] or not repeat.get(which):
        return None
    share = repeat[which][str(repeat["steps"])]
    return None if share is None else 100 * float(share)


def entry(repeats: Repeats, value: Callable[[dict[str, Any]], float | None]) -> Entry | None:
    """Mean, half width of the 95 % interval, number of runs and of those that diverged."""
    lost = sum(each["diverged"] for each in repeats)
    values = [found for each in repeats if (found := value(each)) is not None]
    if not values and lost < len(repeats):
        return None
    mean, width = interval(values) if values else (None, None)
    return {
        "mean": rounded(mean),
        "ci95": rounded(width),
        "n": len(repeats),
        "diverged": lost,
    }


def paired(ours: Repeats, others: Repeats, which: str) -> Entry:
    """Accuracy, ours minus theirs in points, see `paired_by`."""
    return paired_by(ours, others, lambda each: reached(each, which))


def paired_by(
    ours: Repeats, others: Repeats, value: Callable[[dict[str, Any]], float | None]
) -> Entry:
    """Ours minus theirs, seed by seed, over the seeds that finished in both."""
    theirs = {each["seed"]: value(each) for each in others}
    pairs = [(value(each), theirs.get(each["seed"])) for each in ours]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    mean, width = interval(differences) if differences else (None, None)
    return {
        "mean": rounded(mean),
        "ci95": rounded(width),
        "n": len(differences),
        "diverged": sum(each["diverged"] for each in ours),
        "diverged_other": sum(each["diverged"] for each in others),
    }


def mean_curve(repeats: Repeats, which: str) -> list[list[Any]]:
    """[rounds, means over the runs that finished and were looked at in that round]."""
    at_round: dict[int, list[float]] = {}
    for each in repeats:
        for number, value in zip(*each.get(which, ((), ())), strict=True):
            at_round.setdefault(number, []).append(value)
    rounds = sorted(at_round)
    return [rounds, [float(f"{fmean(at_round[number]):.5g}") for number in rounds]]


def rounded(value: float | None) -> float | None:
    """Two decimals are what ten repeats can carry."""
    return None if value is None else round(value, 2)


def at(table: Mapping[str, Any], *path: str) -> Any:
    """What lies at a path of tables within tables; None if nothing does."""
    place: Any = table
    for name in path:
        if not isinstance(place, Mapping) or name not in place:
            return None
        place = place[name]
    return place
