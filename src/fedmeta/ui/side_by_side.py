"""Some runs side by side: what they reached, how they got there, and which settings differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedmeta.core.errors import SettingError
from fedmeta.report import format as fmt
from fedmeta.report.comparison_page import mean_curve
from fedmeta.report.comparison_reading import ComparisonFacts
from fedmeta.report.reading import RunFacts
from fedmeta.ui.drawable import finite

MOST_RUNS = 8  # as many colours as can be told apart


def side_by_side(runs: Mapping[str, RunFacts]) -> dict[str, Any]:
    """Everything `compare.html` needs of two to eight runs, by name."""
    if not 2 <= len(runs) <= MOST_RUNS:
        raise SettingError(f"{len(runs)} runs are chosen", f"choose 2 to {MOST_RUNS} in the list")
    metrics = {run.metric for run in runs.values()}
    if len(metrics) > 1:
        raise SettingError("these runs have different metrics", "choose runs of one kind")
    digests = {run.identity.get("federation") for run in runs.values()}
    return {
        "runs": [_result(name, run) for name, run in runs.items()],
        "metric": (metric := metrics.pop()),
        "unit": fmt.unit(metric, next(iter(runs.values())).settings.get("data", {}).get("label")),
        "same_nodes": len(digests) == 1,
        "curves": [
            {
                "name": name,
                "points": list(zip(*run.target_series(run.adaptation_steps), strict=True)),
            }
            for name, run in runs.items()
        ],
        "losses": [{"name": name, "points": _losses(run)} for name, run in runs.items()],
        "differences": differences([run.settings for run in runs.values()]),
    }


def method_curves(comparison: ComparisonFacts) -> list[dict[str, Any]]:
    """The mean over seeds of every algorithm's metric while it trained."""
    curves = (mean_curve(row, by_gradients=False) for row in comparison.rows)
    return [
        {"name": row.label, "points": list(zip(rounds, means, strict=True))}
        for row, (rounds, means, _, _) in zip(comparison.rows, curves, strict=True)
    ]


def differences(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all: a dotted name, and the value in each.

    Example:
        >>> differences([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}])
        [('a.c', ['2', '3'])]
    """
    flat = [dict(_flat(each)) for each in settings]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [(name, [fmt.setting(each.get(name)) for each in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _result(name: str, run: RunFacts) -> dict[str, Any]:
    statistics = run.target_metric.get(run.adaptation_steps, {})
    return {
        "name": name,
        "algorithm": run.algorithm,
        "data": run.federation.name,
        "seed": run.identity.get("seed"),
        "status": run.status,
        "rounds": run.rounds,
        "steps": run.adaptation_steps,
        "before": finite(run.target_metric.get(0, {}).get("mean", float("nan"))),
        "after": finite(statistics.get("mean", float("nan"))),
        "worst": finite(statistics.get("worst_decile", float("nan"))),
        "seconds": run.total("seconds"),
        "bytes": run.total("bytes_up") + run.total("bytes_down"),
    }


def _losses(run: RunFacts) -> list[tuple[int, float]]:
    found = list(zip(*run.series("meta_loss"), strict=True))
    return found or list(zip(*run.series("local_loss"), strict=True))
