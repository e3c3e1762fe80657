"""Hyper-parameters by grid or random search, judged on held-out source nodes, never on targets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged, nested
from fedmeta.core.errors import DataError, DivergedError, SettingError, require
from fedmeta.core.metrics import sign_of
from fedmeta.core.run_folder import parsing
from fedmeta.data import Federation, load
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import FEWEST, interval
from fedmeta.evaluation.metrics import OwnMetric, own_name
from fedmeta.models.meta_model import MetaModel
from fedmeta.studies.search import Point, Trial, search
from fedmeta.training.many import train_many
from fedmeta.training.progress import Progress, bars
from fedmeta.training.run import Run, runs_of
from fedmeta.training.train import RunRequest

HELD_OUT = 0.2
"""The share of source nodes that plays target while tuning."""


@dataclass(frozen=True)
class Range:
    """Values between two bounds for random search, drawn evenly on a log scale.

    Args:
        low: smallest, > 0.
        high: largest.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        fits = 0 < self.low < self.high < math.inf
        require(fits, "range", f"{self.low}..{self.high}", "two numbers with 0 < low < high")


def grid(choices: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination.

    Example:
        >>> grid({"penalty": [0.1, 1.0], "local_steps": [1]})
        [{'penalty': 0.1, 'local_steps': 1}, {'penalty': 1.0, 'local_steps': 1}]
    """
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def random_points(
    choices: Mapping[str, Sequence[Any] | Range], trials: int, seed: int
) -> list[Point]:
    """`trials` seeded draws: from a range evenly on a log scale, from a list evenly."""
    require(trials >= 1, "trials", trials, "a whole number of at least 1")
    draw = np.random.default_rng([seed, 0x7012])

    def pick(values: Sequence[Any] | Range) -> Any:
        if isinstance(values, Range):
            exponent = draw.uniform(math.log(values.low), math.log(values.high))
            return float(f"{math.exp(exponent):.4g}")
        return values[int(draw.integers(len(values)))]

    return [{name: pick(values) for name, values in choices.items()} for _ in range(trials)]


def tune(
    table: RunSpec | Mapping[str, Any],
    points: Sequence[Point],
    seeds: Sequence[int] = range(3),
    progress: Progress = None,
    folder: Path | None = None,
    earlier: Federation | None = None,
    *,
    resume: bool = False,
    metric: OwnMetric | None = None,
) -> dict[str, Any]:
    """Try every point with every seed and name the best.

    They are judged by the metric that the settings name (`training.metric`), else by accuracy or
    mean squared error. With fewer than `FEWEST` seeds there are no intervals, and the best
    point is not called that to people: `crowned` is false.

    The federation is drawn once, from the settings' own seed, and its targets are taken out before
    anything is trained or scaled. Every repeat then holds out another fifth of the source nodes,
    which plays target and judges, and starts from other weights. A point with a diverged run is
    out.

    Args:
        table: the description of a run, or its settings table.
        points: hyper-parameters to try, as dotted keys of the algorithm's own table; those that
            begin with "prior." are of the table [prior].
        seeds: one repeat each: of the held-out fifth and of the initial weights.
        progress: whether to show a bar; None: where a person watches. Or a function: given a
            label, the callbacks of the runs of a point.
        folder: where every trial is kept as a run; None keeps none.
        earlier: the federation of the prior model. Its source nodes then judge too, the targets of
            neither task do, and the best point has the best mean of both metrics.
        resume: go on with the search in the folder: trials that have ended are kept.
        metric: of your own, to judge by instead: a function (labels, outputs) → number of one node;
            more is better.
    """
    if not points:
        raise SettingError("there is nothing to tune", "give at least one --grid or --range")
    table = table.to_dict() if isinstance(table, RunSpec) else table
    name = str(table.get("algorithm", "admm-fedmeta"))
    # All are built before the first is tried: a slip in the last must not cost the others.
    # What judges a target precisely is off limits here, as targets are; and the pool has them.
    built = [RunSpec.from_dict(merged([table, placed(name, point)])) for point in points]
    blind = [
        replace(
            spec,
            data=replace(spec.data_settings, precise=0, scaling_from="sources"),
            importance="none",
        )
        for spec in built
    ]
    drawn = load(replace(built[0].data_settings, precise=0), built[0].training.seed)
    specs = iter(enumerate(blind))

    def judge(point: Point) -> Trial:
        number, spec = next(specs)
        requests = [
            RunRequest(
                spec.replaced(seed=seed),
                drawn.hold_out(HELD_OUT, seed),
                folder=None if folder is None else folder / f"trials/{number:03d}-seed{seed}",
                metrics=() if metric is None else (metric,),
            )
            for seed in seeds
        ]
        runs = runs_of(train_many(requests, bars(progress)(_label(point)), resume=resume))
        return _trial(point, runs, len(seeds), earlier, metric or spec.training.metric)

    trials = search(points, judge)
    finished = [trial for trial in trials if trial["mean"] is not None]
    if not finished:
        raise DivergedError(
            f"all {len(trials)} points diverged", "try larger penalties or smaller step sizes"
        )
    sign = sign_of(finished[0]["metric"])
    best = max(finished, key=lambda trial: sign * _verdict(trial))
    also = "" if earlier is None else " and, equally, source nodes of the prior task"
    return {
        "algorithm": name,
        "judged_on": f"{HELD_OUT:.0%} of the source nodes, held out{also}; targets were not looked "
        "at",
        "seeds": list(seeds),
        "trials": trials,
        "best": best,
        "crowned": len(seeds) >= FEWEST,
    }


def _label(point: Point) -> str:
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in point.items()
    )


def _trial(
    point: Point,
    runs: Sequence[Run],
    seeds: int,
    earlier: Federation | None,
    metric: str | OwnMetric | None,
) -> Trial:
    """What a point came to; with a diverged run it has no mean."""
    name = own_name(metric) if callable(metric) else metric
    reached = []
    for run in runs:
        with parsing(
            run.folder or Path(), "summary.json"
        ):  # it may be an earlier run's, read again
            reached.append(_reached(run.summary, name))
    values = [each for each in reached if each is not None]
    judged = interval(values, FEWEST) if len(values) == seeds else None
    kept = [] if earlier is None else [_on_sources(run.meta_model, earlier, metric) for run in runs]
    return {
        "settings": point,
        "values": values,
        "mean": judged.mean if judged else None,
        "ci95": judged.half_width if judged and seeds >= FEWEST else None,
        "diverged": seeds - len(values),
        "metric": name or (runs[0].summary["metric"] if runs else "accuracy"),
        **({"earlier": _kept(kept)} if earlier is not None else {}),
    }


def _reached(summary: Mapping[str, Any], metric: str | None) -> float | None:
    """The mean metric of what played target; None where adaptation blew a node's model up."""
    steps = str(summary["adaptation_steps"])
    found = summary["target_metric"][steps]["mean"]
    if metric is None or found is None:
        return None if found is None else float(found)
    if steps not in summary["metrics"].get(metric, {}):
        raise DataError(
            f"no held-out node has samples to tell {metric} by", "use another metric, or more data"
        )
    return float(summary["metrics"][metric][steps]["mean"])


def _on_sources(model: MetaModel, federation: Federation, metric: str | OwnMetric | None) -> float:
    """The mean metric of source nodes after adaptation."""
    nodes = [replace(node, role="target") for node in federation.sources]
    steps = model.adaptation.steps
    own = (metric,) if callable(metric) else ()
    found = evaluate_model(model, federation.with_nodes(nodes), [steps], metrics=own)
    name = own_name(metric) if callable(metric) else metric
    return float(found.mean(name or found.metric, steps) or 0.0)


def _kept(values: Sequence[float]) -> dict[str, Any]:
    judged = interval(values, FEWEST) if values else None
    return {
        "values": list(values),
        "mean": judged.mean if judged else None,
        "ci95": judged.half_width if judged and len(values) >= FEWEST else None,
    }


def _verdict(trial: Mapping[str, Any]) -> float:
    """What trials are ranked by: the metric, or the mean of those of both tasks."""
    both = [trial["mean"], *([trial["earlier"]["mean"]] if "earlier" in trial else [])]
    return float(np.mean(both))


def placed(algorithm: str, point: Mapping[str, Any]) -> Table:
    """A point as a settings table: keys "prior.…" are the prior's, others the algorithm's.

    Example:
        >>> placed("admm-fedmeta", {"penalty": 1.0, "prior.strength": 0.5})
        {'algorithms': {'admm-fedmeta': {'penalty': 1.0}}, 'prior': {'strength': 0.5}}
    """
    own = {key: value for key, value in point.items() if not key.startswith("prior.")}
    table = nested({key: value for key, value in point.items() if key not in own})
    # Not by a dotted key: an algorithm of one's own is named by a path, which has dots.
    return {"algorithms": {algorithm: nested(own)}, **table}
