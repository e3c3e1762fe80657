"""Draws what `make demo` has trained: three new sensors before and after one step.

    python examples/demo_picture.py [FOLDER]

FOLDER is that of the comparison; without one it is the newest of runs/demo, runs/demo-2, …
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import fedmeta

SHOWN = 3
BLUE, ORANGE, GREY = "#0a66a8", "#c8540a", "#9aa1a9"
METHODS = {"admm-fedmeta": "ADMM-FedMeta", "fedavg": "FedAvg"}


def newest(runs: Path = Path("runs")) -> Path:
    """The folder of the last demo."""
    found = [path for path in runs.glob("demo*") if (path / "comparison.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime)


def main(folder: Path) -> Path:
    """Draw the picture into the folder; returns its file."""
    federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=60), seed=0)
    models = {name: fedmeta.MetaModel.load(folder / f"runs/{name}-seed0") for name in METHODS}
    grid = np.linspace(-5, 5, 61, dtype=np.float32)[:, None]
    # Those whose waves differ most from the mean one: quiet waves are easy for all.
    loudest = sorted(federation.targets, key=lambda node: -np.ptp(federation.labels[node.support]))

    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    rows = figure.subplots(len(METHODS), SHOWN, sharex=True, sharey=True)
    for row, (name, title) in zip(rows, METHODS.items(), strict=True):
        model = models[name]
        for axes, node in zip(row, loudest[:SHOWN], strict=True):
            x, y = federation.inputs[node.support], federation.labels[node.support]
            unseen = federation.inputs[node.query], federation.labels[node.query]
            axes.plot(grid, model.predict(grid), color=GREY, label="before")
            axes.plot(grid, model.adapt(x, y).predict(grid), color=BLUE, label="after one step")
            axes.plot(x, y, "o", color=ORANGE, markersize=4, label="its samples")
            axes.plot(*unseen, "o", color=ORANGE, markersize=4, mfc="none", label="unseen")
            axes.grid(color="#e6e8eb")
            axes.spines[["right", "top"]].set_visible(False)
        row[0].set_ylabel(title)
    for number, axes in enumerate(rows[0], 1):
        axes.set_title(f"new sensor {number}", fontsize=10)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path = folder / "before-and-after.svg"
    # Texts stay texts, and the same numbers give the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedmeta"}):
        figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    print(f"picture  {main(Path(sys.argv[1]) if sys.argv[1:] else newest())}")
