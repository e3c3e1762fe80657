"""Data of your own: arrays, or a table with a column that says whose sample each one is.

Run this file. It makes up a table of 20 devices, as a stand-in for yours, trains on 16 of them and
adapts to a new one.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np

import fedmeta


def write_table(path: Path) -> None:
    """Stands for your data: readings of machines, each with an offset of its own."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["temperature", "vibration", "label", "machine"])
        for machine in range(20):
            offset = rng.normal(size=2)
            for _ in range(30):
                worn = bool(rng.integers(2))
                values = offset + rng.normal(size=2) * 0.5 + (2.0 if worn else 0.0)
                table.writerow([*values.round(4), "worn" if worn else "fine", f"machine-{machine}"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machines.csv"
        write_table(path)
        # A node per machine. A fifth of them are targets: new machines, which only adapt.
        federation = fedmeta.load(fedmeta.DataSettings(str(path), node="machine"), seed=0)
    run = fedmeta.train(
        federation,
        fedmeta.ModelSettings("mlp", hidden=(16,)),
        fedmeta.ADMMFedMeta(),
        fedmeta.TrainingSettings(rounds=40),
    )
    # The same by hand: a dozen labelled samples of a new machine give its own model.
    new = federation.targets[0]
    names = np.array(federation.task.class_names)[federation.labels]
    mine = run.meta_model.adapt(federation.inputs[new.support], names[new.support])
    for title, model in (("before", run.meta_model), ("adapted", mine)):
        right = np.array(model.classify(federation.inputs[new.query])) == names[new.query]
        print(f"{title:8} {100 * right.mean():.1f} % of the samples of {new.name}")


if __name__ == "__main__":
    main()
