"""Hyper-parameters by grid or random search, judged on held-out source nodes, never on targets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.config.settings import Table, build_settings, merged
from fedmeta.core.errors import DivergedError, SettingError, require
from fedmeta.data import Federation, load
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.models.meta_model import MetaModel
from fedmeta.training.from_settings import train_settings
from fedmeta.training.loop import Callback

HELD_OUT = 0.2
"""The share of source nodes that plays target while tuning."""

Point = dict[str, Any]


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
    table: Table,
    points: Sequence[Point],
    seeds: Sequence[int],
    progress: Callable[[str, int], Sequence[Callback]],
    folder: Path | None = None,
    earlier: Federation | None = None,
) -> dict[str, Any]:
    """Try every point with every seed and name the best.

    The federation is drawn once, from the settings' own seed, and its targets are taken out before
    anything is trained or scaled. Every repeat then holds out another fifth of the source nodes,
    which plays target and judges, and starts from other weights. A point with a diverged run is
    out.

    Args:
        table: settings as a table (see `fedmeta.config.settings`).
        points: hyper-parameters to try, as dotted keys of the algorithm's own table; those that
            begin with "prior." are of the table [prior].
        seeds: one repeat each: of the held-out fifth and of the initial weights.
        progress: given a label and a seed, the callbacks of that run.
        folder: where every trial is kept as a run; None keeps none.
        earlier: the federation of the prior model. Its source nodes then judge too, the targets of
            neither task do, and the best point has the best mean of both metrics.
    """
    if not points:
        raise SettingError("there is nothing to tune", "give at least one --grid or --range")
    name = str(table.get("algorithm", "admm-fedmeta"))
    trials: list[dict[str, Any]] = []
    # All are built before the first is tried: a slip in the last must not cost the others.
    built = [build_settings(merged([table, placed(name, point)])) for point in points]
    # What judges a target precisely is off limits here, as targets are.
    built = [replace(each, data=replace(each.data, precise=0)) for each in built]
    drawn = load(built[0].data, built[0].training.seed)
    for number, (point, settings) in enumerate(zip(points, built, strict=True)):
        values: list[float] = []
        kept: list[float] = []
        metric = "accuracy"
        for seed in seeds:
            federation = drawn.hold_out(HELD_OUT, seed)
            one = replace(
                settings,
                data=replace(settings.data, scaling_from="sources"),  # the pool has the targets
                training=replace(settings.training, seed=seed),
            )
            label = ", ".join(
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in point.items()
            )
            place = None if folder is None else folder / f"trials/{number:03d}-seed{seed}"
            try:
                run = train_settings(one, federation, folder=place, callbacks=progress(label, seed))
            except DivergedError:
                continue
            summary = run.summary
            metric = summary["metric"]
            reached = summary["target_metric"][str(summary["adaptation_steps"])]["mean"]
            if reached is not None:
                values.append(reached)
            if earlier is not None:
                kept.append(_on_sources(run.meta_model, earlier))
        judged = interval(values) if len(values) == len(seeds) else None
        trials.append(
            {
                "settings": point,
                "values": values,
                "mean": judged.mean if judged else None,
                "ci95": judged.half_width if judged else None,
                "diverged": len(seeds) - len(values),
                "metric": metric,
                **({"earlier": _kept(kept)} if earlier is not None else {}),
            }
        )
    finished = [trial for trial in trials if trial["mean"] is not None]
    if not finished:
        raise DivergedError(
            f"all {len(trials)} points diverged", "try larger penalties or smaller step sizes"
        )
    sign = 1 if finished[0]["metric"] == "accuracy" else -1
    best = max(finished, key=lambda trial: sign * _verdict(trial))
    also = "" if earlier is None else " and, equally, source nodes of the prior task"
    return {
        "algorithm": name,
        "judged_on": f"{HELD_OUT:.0%} of the source nodes, held out{also}; targets were not looked "
        "at",
        "seeds": list(seeds),
        "trials": trials,
        "best": best,
    }


def _on_sources(model: MetaModel, federation: Federation) -> float:
    """The mean metric of source nodes after adaptation."""
    nodes = [replace(node, role="target") for node in federation.sources]
    steps = model.adaptation.steps
    found = evaluate_model(model, federation.with_nodes(nodes), [steps])
    return float(np.mean(found.values[steps]))


def _kept(values: Sequence[float]) -> dict[str, Any]:
    judged = interval(values) if values else None
    return {
        "values": list(values),
        "mean": judged.mean if judged else None,
        "ci95": judged.half_width if judged else None,
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


def nested(point: Mapping[str, Any]) -> Table:
    """Dotted keys as nested tables.

    Example:
        >>> nested({"inner.step_size": 0.1, "penalty": 1.0})
        {'inner': {'step_size': 0.1}, 'penalty': 1.0}
    """
    table: Table = {}
    for key, value in point.items():
        *parents, last = key.split(".")
        place = table
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SettingError(f"{parent} in {key!r} has a value already", "set one of the two")
        place[last] = value
    return table
