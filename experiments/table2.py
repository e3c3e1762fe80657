"""Table 2: forgetting. Both tasks of a two-task experiment, and what is lost of the first.

What the paper published is in percent: MobiHoc 2021, table 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from experiments.cell import Key
from experiments.experiment import Experiment, Found, Goal, Summary
from experiments.names import DEFAULT, OURS, data_sets, named
from experiments.statistics import Repeats, accuracy, at, entry, paired
from experiments.tables import markdown, points, shown, words

TABLE_2: dict[str, dict[str, tuple[float, float]]] = {
    "fashion-mnist": {
        "prior-model": (95.63, 49.21),
        "fedavg": (41.27, 94.05),
        "per-fedavg": (49.60, 94.84),
        "admm-fedmeta": (92.86, 94.04),
    },
    "cifar10": {
        "prior-model": (75.74, 17.33),
        "fedavg": (41.08, 55.45),
        "per-fedavg": (42.08, 47.03),
        "admm-fedmeta": (62.38, 71.29),
    },
    "cifar100": {
        "prior-model": (66.27, 45.63),
        "fedavg": (35.32, 40.48),
        "per-fedavg": (37.62, 57.92),
        "admm-fedmeta": (59.52, 63.10),
    },
}
"""Data set, algorithm: accuracy on the targets of the prior and of the new task."""

TABLE_2_DROPS = {"fashion-mnist": 2.8, "cifar10": 13.4, "cifar100": 6.8}
"""What ADMM-FedMeta loses on the prior task against θ_p, in points."""


def on_both_tasks(found: Found) -> Iterable[tuple[Key, Any]]:
    """What every algorithm, or λ, reaches on both tasks."""
    for (data, algorithm), result in found.items():
        repeats = result["repeats"]
        yield (data, algorithm), _on_both(repeats, _theta_p(found, data, algorithm))


def _theta_p(found: Found, data: str, algorithm: str) -> Repeats:
    """The repeats of the θ_p that an algorithm started from."""
    ours = "-default" if algorithm.endswith("-default") else ""
    start = found.get((data, f"prior-model{ours}"))
    return start["repeats"] if start else []


def _on_both(repeats: Repeats, theta_p: Repeats) -> dict[str, Any]:
    """Both tasks, what was lost on the prior one (points), and the forgetting cost L_p."""
    return {
        "prior": accuracy(repeats, "prior"),
        "new": accuracy(repeats),
        "prior-precise": accuracy(repeats, "prior_precise"),
        "new-precise": accuracy(repeats, "precise"),
        "drop": paired(theta_p, repeats, "prior"),
        "drop-precise": paired(theta_p, repeats, "prior_precise"),
        "forgetting-cost": _loss_on_prior(repeats, "0"),
        "forgetting-cost-adapted": _loss_on_prior(repeats, "1"),
    }


def _loss_on_prior(repeats: Repeats, steps: str) -> Any:
    return entry(repeats, lambda each: each.get("prior_loss", {}).get(steps))


def table(summary: Summary) -> str:
    """Table 2: both tasks, the drop from θ_p and the forgetting cost."""
    rows = []
    for data in data_sets(summary):
        found = summary["table2"].get(data, {})
        for algorithm, mine in found.items():
            published = TABLE_2.get(data, {}).get(algorithm)
            printed = (
                ("–", "–") if published is None else tuple(f"{each:.2f}" for each in published)
            )
            cells = [printed[0], shown(mine["prior"]), printed[1], shown(mine["new"])]
            cells += [points(mine["drop"]), shown(mine["forgetting-cost"])]
            rows.append([named(data), named(algorithm), *cells])
    heads = ["data", "algorithm", "prior task: the paper", "ours", "new task: the paper", "ours"]
    return markdown([*heads, "drop from θ_p, points", "L_p"], rows)


def goals(summary: Summary) -> Iterator[Goal]:
    """The default reaches what the paper's algorithm does on both tasks, and loses no more."""
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


EXPERIMENT = Experiment(on_both_tasks, table)
