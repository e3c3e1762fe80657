r"""What eight bits cost: the C code in float32 and with a body in int8, on the same targets.

    python -m benchmarks.int8_accuracy --folder DATA --seeds 10 --results results/int8.json

Every seed trains a model as `fedmeta train` does, exports it twice, compiles both by gcc and lets
every target adapt to its support set and answer its query set (and its precise set, if it has one)
by that very code. The ranges of activations are those that the source nodes tell. Differences are
paired by seed, in points.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import machine_words
from experiments.training import federation, short
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.storage import write_json
from fedmeta.data.federation import Federation
from fedmeta.evaluation.intervals import interval
from fedmeta.export.c import export_c, source_ranges
from fedmeta.models.meta_model import MetaModel
from fedmeta.training.train import train_spec

PLACES: dict[str, dict[str, Any]] = {
    "motion": {
        "data": {"name": "hapt_windows.npz", "node": "subject"},
        "model": {"name": "cnn"},
    },
    "digits": {"data": {"name": "digits", "nodes": 50, "precise": 100}},
    "fashion-mnist": {"data": {"name": "fashion-mnist", "nodes": 50, "precise": 100}},
}
FLOATS = ctypes.POINTER(ctypes.c_float)


class Device:
    """An exported model, compiled and loaded into this process.

    Args:
        model: that was exported.
        folder: where to.
    """

    def __init__(self, model: MetaModel, folder: Path) -> None:
        program = folder / "model.so"
        line = ["gcc", "-std=c99", "-O2", "-shared", "-fPIC", str(folder / "model.c"), "-lm", "-o"]
        subprocess.run([*line, str(program)], check=True)
        self._code, self._outputs = ctypes.CDLL(str(program)), model.task.outputs
        self._steps = model.adaptation.steps

    def accuracy(self, nodes: Federation) -> float:
        """Mean over the targets, after each has adapted."""
        found = []
        for node in nodes.targets:
            self._adapt(nodes, node.support)
            judged = node.precise if len(node.precise) else node.query
            right = [self._answer(nodes.inputs[row]) == nodes.labels[row] for row in judged]
            found.append(np.mean(right))
        return 100 * float(np.mean(found))

    def _adapt(self, nodes: Federation, rows: Any) -> None:
        self._code.fm_reset()
        for _ in range(self._steps):
            for row in rows:
                self._code.fm_adapt_add(_floats(nodes.inputs[row]), int(nodes.labels[row]))
            if self._code.fm_adapt_step() != 0:
                raise RuntimeError("a step failed")

    def _answer(self, sample: Any) -> int:
        output = np.zeros(self._outputs, np.float32)
        if self._code.fm_predict(_floats(sample), output.ctypes.data_as(FLOATS)) != 0:
            raise RuntimeError("a prediction failed")
        return int(output.argmax())


def _floats(sample: Any) -> Any:
    return np.ascontiguousarray(sample, np.float32).ctypes.data_as(FLOATS)


def seed_row(place: str, seed: int, folder: str, rounds: int) -> dict[str, float]:
    """Accuracy of both of one seed."""
    own = {"data": {"folder": folder}, "training": {"rounds": rounds, "evaluate_every": 0}}
    spec = RunSpec.from_dict(merged([PLACES[place], own, {"training": {"seed": seed}}]))
    nodes = federation(spec.data, seed)
    model = train_spec(spec, nodes).meta_model
    found = {}
    for name, ranges in (("float32", None), ("int8", source_ranges(model, nodes))):
        with tempfile.TemporaryDirectory() as code:
            export_c(model, code, int8=ranges)
            found[name] = Device(model, Path(code)).accuracy(nodes)
    return found


def main() -> None:
    """Train, export, compile and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", required=True, help="where the data sets are")
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=list(PLACES))
    parser.add_argument("--seeds", type=int, default=10, help="how many [10]")
    parser.add_argument("--rounds", type=int, default=60, help="of every training [60]")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    given = parser.parse_args()
    rows = []
    for place in given.places:
        seeds = []
        for seed in range(given.seeds):
            seeds.append(seed_row(place, seed, given.folder, given.rounds))
            print(
                place, seed, {name: round(each, 2) for name, each in seeds[-1].items()}, flush=True
            )
        lost = interval([each["int8"] - each["float32"] for each in seeds])
        means = {
            name: short(float(np.mean([each[name] for each in seeds])), 4) for name in seeds[0]
        }
        difference = [short(part, 3) for part in lost]
        rows.append({"place": place, "seeds": len(seeds), **means, "int8 less float32": difference})
        print(rows[-1], flush=True)
    if given.results is not None:
        write_json(
            given.results, {"rounds": given.rounds, "machine": machine_words("cpu"), "rows": rows}
        )


if __name__ == "__main__":
    main()
