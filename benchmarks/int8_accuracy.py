r"""What eight bits cost: the C code in float32 and with a body in int8, on the same targets.

    python -m benchmarks.int8_accuracy --folder DATA --seeds 10 --results results/int8.json

Every seed trains a model as `fedmeta train` does, exports it as C in float32, as C in int8 and as
an ONNX graph in int8, and lets every target adapt to its support set and answer its query set (or
its precise set, if it has one) by these very files. The ranges of activations are those that the
source nodes tell. Differences are paired by seed, in points. Seeds that the file has are not
trained again.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fedmeta_edge
from experiments.results import machine_words
from experiments.training import federation, short
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.storage import read_json, write_json
from fedmeta.data.federation import Federation, Node
from fedmeta.evaluation.intervals import interval
from fedmeta.export import activation_ranges, export_onnx
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
FORMS = ("float32", "int8", "onnx int8")
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
            rows = _judged(node)
            right = [self._answer(nodes.inputs[row]) == nodes.labels[row] for row in rows]
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


def onnx_accuracy(file: Path, nodes: Federation) -> float:
    """Mean over the targets, after each has adapted by the graph of a file."""
    model, found = fedmeta_edge.load(file), []
    for node in nodes.targets:
        own = nodes.inputs[node.support], nodes.labels[node.support]
        adapted = fedmeta_edge.adapt(model, *own)
        rows = _judged(node)
        answers = model.logits(nodes.inputs[rows], adapted.weights).argmax(axis=1)
        found.append(np.mean(answers == nodes.labels[rows]))
    return 100 * float(np.mean(found))


def _judged(node: Node) -> npt.NDArray[Any]:
    return node.precise if len(node.precise) else node.query


def _floats(sample: Any) -> Any:
    return np.ascontiguousarray(sample, np.float32).ctypes.data_as(FLOATS)


def seed_row(place: str, seed: int, folder: str, rounds: int) -> dict[str, float]:
    """Accuracy of all forms of one seed."""
    own = {"data": {"folder": folder}, "training": {"rounds": rounds, "evaluate_every": 0}}
    spec = RunSpec.from_dict(merged([PLACES[place], own, {"training": {"seed": seed}}]))
    nodes = federation(spec.data, seed)
    model = train_spec(spec, nodes).meta_model
    found = {}
    for name, ranges in (("float32", None), ("int8", source_ranges(model, nodes))):
        with tempfile.TemporaryDirectory() as code:
            export_c(model, code, int8=ranges)
            found[name] = Device(model, Path(code)).accuracy(nodes)
    with tempfile.TemporaryDirectory() as code:
        file = Path(code) / "model.onnx"
        export_onnx(model, file, adaptable=True, int8=activation_ranges(model, nodes))
        found["onnx int8"] = onnx_accuracy(file, nodes)
    return found


def place_row(place: str, seeds: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Means, and what eight bits cost with its interval, from the accuracies by seed."""
    rows = list(seeds.values())
    found: dict[str, Any] = {"place": place, "seeds": len(rows)}
    found |= {form: short(float(np.mean([row[form] for row in rows])), 4) for form in FORMS}
    for form in FORMS[1:]:
        lost = interval([row[form] - row["float32"] for row in rows])
        found[f"{form} less float32"] = [short(part, 3) for part in lost]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, export, compile and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", required=True, help="where the data sets are")
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=list(PLACES))
    parser.add_argument("--seeds", type=int, default=10, help="how many [10]")
    parser.add_argument("--rounds", type=int, default=100, help="of every training [100]")
    parser.add_argument("--results", type=Path, required=True, help="a JSON file to write")
    given = parser.parse_args(arguments)
    known = read_json(given.results, "results") if given.results.exists() else {}
    if known and known["rounds"] != given.rounds:
        raise SystemExit(
            f"{given.results} has seeds of {known['rounds']} rounds: name another file"
        )
    each: dict[str, dict[str, dict[str, float]]] = known.get("accuracy", {})
    for place in given.places:
        mine = each.setdefault(place, {})
        for seed in range(given.seeds):
            if str(seed) in mine:
                continue
            found = seed_row(place, seed, given.folder, given.rounds)
            mine[str(seed)] = {form: round(value, 4) for form, value in found.items()}
            print(place, seed, mine[str(seed)], flush=True)
            rows = [place_row(name, seeds) for name, seeds in each.items()]
            about = {"rounds": given.rounds, "machine": machine_words("cpu")}
            write_json(given.results, {**about, "rows": rows, "accuracy": each})
        print(place_row(place, mine), flush=True)


if __name__ == "__main__":
    main()
