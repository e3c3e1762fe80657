"""The one search: try every point, then those that the trials so far call for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Point = dict[str, Any]
Trial = dict[str, Any]
"""What a point came to: `point`, `values` of the runs that finished, their `mean`, and more."""


def search(
    points: Sequence[Point],
    judge: Callable[[Point], Trial],
    further: Callable[[Sequence[Trial]], Point | None] = lambda _trials: None,
) -> list[Trial]:
    """The trials of all points, in order.

    Args:
        points: what to try.
        judge: trains the repeats of a point and says what they reach.
        further: a point to try after those, given the trials so far; None: none.

    Example:
        >>> def square(point):
        ...     return {"point": point, "values": [point["x"] ** 2], "mean": point["x"] ** 2}
        >>> best_point(search([{"x": 1}, {"x": -3}], square))
        {'x': -3}
    """
    trials = [judge(point) for point in points]
    while (point := further(trials)) is not None:
        trials.append(judge(point))
    return trials


def best_point(trials: Sequence[Mapping[str, Any]]) -> Any:
    """The point with the best mean among those with the most finished runs; None: none finished.

    Example:
        >>> trials = [{"point": 1, "values": [0.9], "mean": 0.9}]
        >>> best_point([*trials, {"point": 2, "values": [0.7, 0.8], "mean": 0.75}])
        2
    """
    finished = [trial for trial in trials if trial["values"]]
    best = max(finished, key=lambda each: (len(each["values"]), each["mean"]), default=None)
    return None if best is None else best["point"]
