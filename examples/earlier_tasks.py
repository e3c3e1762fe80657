"""Two tasks of digits, one after the other: what each kind of prior keeps of the first.

    python examples/earlier_tasks.py SEEDS

Devices hold two of the digits 0 to 4 in the first task, and of 5 to 9 in the second, which starts
from the first one's model. λ is found automatically. The table has the accuracy of target devices
of both tasks after one step, on their precise sets, and the forgetting cost: the loss of the first
task's source devices.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from fedmeta import (
    Federation,
    MetaModel,
    RunSpec,
    evaluate_model,
    interval,
    load,
    store_importance,
    train_spec,
)

PRIORS: dict[str, dict[str, Any]] = {
    "none": {},
    "euclidean": {"kind": "euclidean"},
    "fisher": {"kind": "fisher"},
    "path": {"kind": "path"},
    "outputs": {"kind": "outputs", "data": "unlabelled.npz"},
}


def write_tasks() -> None:
    """The data of both tasks, with the same ten classes, and some samples without labels."""
    digits = load_digits()
    x, y, names = digits.images.astype(np.float32), digits.target, [str(n) for n in range(10)]
    np.savez("early.npz", x=x[y < 5], y=y[y < 5], class_names=names)
    np.savez("later.npz", x=x[y >= 5], y=y[y >= 5], class_names=names)
    np.savez("unlabelled.npz", x=x[::4])


def settings(task: str, seed: int, rounds: int, **rest: Any) -> RunSpec:
    """What is trained on a task."""
    return RunSpec.from_dict(
        {
            "data": {"name": f"{task}.npz", "nodes": 25, "precise": 150},
            "inner": {"step_size": 0.3, "scope": "head"},  # class means leave too little to learn
            "training": {"rounds": rounds, "seed": seed, "evaluate_every": 0},
            "execution": {"threads": 1},  # the order of sums decides the last digits
            **rest,
        }
    )


def judged(model: MetaModel, early: Federation, later: Federation) -> list[float]:
    """Accuracy on the targets of both tasks, and the forgetting cost."""
    found = [evaluate_model(model, each, [1]).precise for each in (early, later)]
    sources = early.with_nodes(replace(node, role="target") for node in early.sources)
    cost = np.mean(evaluate_model(model, sources, [1]).losses[1])
    return [*(float(np.mean(each.values[1])) for each in found if each is not None), float(cost)]


def both_tasks(seed: int, rounds: int = 100) -> Mapping[str, list[float]]:
    """Train the first task, then the second with every kind of prior; judge all models."""
    write_tasks()
    first, folder = settings("early", seed, rounds, importance="path"), Path(f"early-{seed}")
    early = load(first.data_settings, seed)
    model = train_spec(first, early, folder=folder).meta_model  # its path is stored with it
    store_importance(folder, "fisher", model, early)
    later = load(settings("later", seed, rounds).data_settings, seed)
    rows = {"the first model itself": judged(model, early, later)}
    for name, prior in PRIORS.items():
        tie = {"prior": {"model": str(folder), **prior}} if prior else {}
        second = settings("later", seed, rounds, init=str(folder), **tie)
        rows[name] = judged(train_spec(second, later).meta_model, early, later)
    return rows


def main(seeds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = [both_tasks(seed) for seed in range(seeds)]
    print("| prior | first task, % | second task, % | forgetting cost |\n|---|---|---|---|")
    for name in found[0]:
        first, second, cost = (
            interval([rows[name][place] for rows in found]) for place in range(3)
        )
        cells = [
            f"{100 * mean:.1f}" + (f" ± {100 * half_width:.1f}" if half_width else "")
            for mean, half_width in (first, second)
        ]
        print(f"| {name} | {' | '.join(cells)} | {cost.mean:.4f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
