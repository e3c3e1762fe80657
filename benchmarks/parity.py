"""How far a device's weights lie from PyTorch's, and PyTorch's from its own in double precision.

    python -m benchmarks.parity RUN --steps 5
    python -m benchmarks.parity RUN --noise 60

Every target of a run adapts the meta-model to its support set: by the exported graph in ONNX
Runtime, by PyTorch with one thread and with two, and by PyTorch in float64. Two ways differ by the
largest difference of any weight. With `--noise`, that many sets of seven samples of random pixels
and labels take the place of the targets.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

import fedmeta_edge
from fedmeta.core.run_folder import RunFolder
from fedmeta.data.federation import Federation
from fedmeta.data.pool import Array
from fedmeta.export import export_onnx
from fedmeta.fleet.reopen import open_model, own_federation
from fedmeta.models.meta_model import MetaModel

GOAL = 1e-5

Weights = dict[str, Array]
Way = Callable[[Array, Array, int], Weights]


def by_graph(model: MetaModel, folder: Path) -> Way:
    """Adaptation by the exported file."""
    export_onnx(model, folder / "model.onnx", adaptable=True)
    opened = fedmeta_edge.load(folder / "model.onnx")
    return lambda inputs, labels, steps: dict(
        fedmeta_edge.adapt(opened, inputs.astype(np.float32), labels, steps).weights
    )


def by_pytorch(model: MetaModel, dtype: torch.dtype, threads: int) -> Way:
    """Adaptation by PyTorch."""
    network = model.network.to(torch.device("cpu"), dtype)
    theta = {name: leaf.to("cpu", dtype) for name, leaf in model.theta.items()}
    typed, moves = replace(model, network=network, theta=theta), model.adaptation.moves(theta)

    def adapt(inputs: Array, labels: Array, steps: int) -> Weights:
        torch.set_num_threads(threads)
        named = np.array(model.task.class_names)[labels] if model.task.class_names else labels
        found = typed.adapt(inputs, named, steps=steps).theta
        return {f"theta/{name}": found[name].double().numpy() for name in moves}

    return adapt


def targets(federation: Federation) -> Iterator[tuple[Array, Array]]:
    """The support sets of a run's targets."""
    for node in federation.targets:
        yield federation.inputs[node.support], federation.labels[node.support]


def noise(model: MetaModel, sets: int) -> Iterator[tuple[Array, Array]]:
    """Random pixels, random classes."""
    rng = np.random.default_rng(0)
    for _ in range(sets):
        spread = rng.normal(size=(7, *model.input_shape)) * model.scaling.deviation
        yield model.scaling.mean + spread, rng.integers(model.task.outputs, size=7)


def farthest(one: Weights, other: Weights) -> float:
    """The largest difference of any weight."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--steps", type=int, default=5, help="gradient steps [5]")
    parser.add_argument("--noise", type=int, help="sets of random samples instead of the targets")
    given = parser.parse_args()
    model = open_model(given.run)
    sets = (
        targets(own_federation(RunFolder.open(given.run)))
        if given.noise is None
        else noise(model, given.noise)
    )
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "graph": by_graph(model, Path(folder)),
            "float32": by_pytorch(model, torch.float32, threads=1),
            "float32, two threads": by_pytorch(model, torch.float32, threads=2),
            "float64": by_pytorch(model, torch.float64, threads=2),
        }
        found = [
            {name: way(inputs, labels, given.steps) for name, way in ways.items()}
            for inputs, labels in sets
        ]
    print(f"{len(found)} sets, {given.steps} steps of size {model.adaptation.step_size}")
    for one, other in combinations(ways, 2):
        errors = np.array([farthest(each[one], each[other]) for each in found])
        above = int((errors > GOAL).sum())
        print(
            f"{one:>20} – {other:<20}  median {np.median(errors):.0e}  most {errors.max():.0e}  "
            f"above {GOAL:.0e}: {above}"
        )


if __name__ == "__main__":
    main()
