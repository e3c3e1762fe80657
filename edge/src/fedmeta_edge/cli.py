"""The command line: `fedmeta-edge adapt`, `predict`, `info` and `measure`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NoReturn

import numpy as np

from fedmeta_edge.adaptation import adapt, adapt_if_it_helps
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.measuring import example_samples, installed_sizes, peak_memory, step_seconds
from fedmeta_edge.model import Array, Model, load, predict
from fedmeta_edge.samples import read_samples
from fedmeta_edge.weights import read_weights, write_weights


def main() -> NoReturn:
    """The program `fedmeta-edge`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    try:
        given = _parser().parse_args(arguments)
        does = {"adapt": _adapt, "predict": _predict, "info": _info, "measure": _measure}
        does[given.command](given)
    except EdgeError as error:
        print(f"fedmeta-edge: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        return 0
    return 0


class _Parser(argparse.ArgumentParser):
    """Argparse that complains in one line."""

    def error(self, message: str) -> NoReturn:
        raise EdgeError(message, "see --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fedmeta-edge", description="Adapt a model on the device, without PyTorch."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adapting = commands.add_parser("adapt", help="adapt to a device's own labelled samples")
    predicting = commands.add_parser("predict", help="predict with or without adapted weights")
    telling = commands.add_parser("info", help="what a model file says of itself")
    measuring = commands.add_parser("measure", help="memory, time per step and installed size here")
    for each in (adapting, predicting, telling, measuring):
        each.add_argument("model", type=Path, help="what fedmeta export wrote")
    for each in (adapting, predicting):
        each.add_argument("--data", type=Path, required=True, help=".csv or .npz")
        each.add_argument("--label", help="label column or array [label; y in .npz files]")
    adapting.add_argument("--steps", type=int, help="gradient steps [as trained]")
    adapting.add_argument("--step-size", type=float, help="α [as trained]")
    adapting.add_argument("--seed", type=int, default=0, help="of all draws [0]")
    adapting.add_argument(
        "--only-if-it-helps",
        action="store_true",
        help="a third of the samples judges; if it does not help, the meta-model stays",
    )
    adapting.add_argument("-o", "--out", type=Path, required=True, help="adapted weights, .npz")
    measuring.add_argument("--samples", type=int, default=12, help="that it adapts to [12]")
    predicting.add_argument("--weights", type=Path, help="adapted weights [the model's own]")
    return parser


def _adapt(given: argparse.Namespace) -> None:
    model = load(given.model)
    model.check_adaptable()
    if given.seed < 0:
        raise EdgeError(f"seed is {given.seed}", "give a whole number of at least 0")
    samples = read_samples(given.data, model, given.label)
    assert samples.labels is not None  # read_samples asks for them
    how = adapt_if_it_helps if given.only_if_it_helps else adapt
    adapted = how(model, samples.inputs, samples.labels, given.steps, given.seed, given.step_size)
    count = len(samples.inputs)
    if adapted.losses is not None:
        before, after = adapted.losses
        verdict = "adapting helps" if adapted.steps else "the meta-model stays"
        print(f"loss on held-out samples {before:.4g} before, {after:.4g} after: {verdict}")
    steps = _counted(adapted.steps, "step")
    print(f"{steps} on {_counted(count, 'sample')}, {1000 * adapted.seconds:.2f} ms per step")
    write_weights(given.out, model, adapted)
    print(f"weights written to {given.out}")


def _predict(given: argparse.Namespace) -> None:
    model = load(given.model)
    weights = None if given.weights is None else read_weights(given.weights, model)
    samples = read_samples(given.data, model, given.label, labelled=False)
    outputs = predict(model, samples.inputs, weights)
    if model.classes:
        print("class,probability")
        for row in outputs:
            print(f"{model.classes[row.argmax()]},{row.max():.4f}")
    else:
        print(",".join(f"output_{number}" for number in range(model.outputs)))
        for row in outputs:
            print(",".join(f"{value:.6g}" for value in row))
    if samples.labels is not None:
        print(_judgement(model, outputs, samples.labels), file=sys.stderr)


def _judgement(model: Model, outputs: Array, labels: Array) -> str:
    if model.classes:
        right = (outputs.argmax(axis=1) == labels).mean()
        return f"accuracy {100 * right:.1f} % on {len(labels)} samples"
    return f"mse {np.square(outputs - labels).mean():.4g} on {len(labels)} samples"


def _info(given: argparse.Namespace) -> None:
    model = load(given.model)
    shape = " × ".join(str(size) for size in model.input_shape)
    print(f"model     {given.model}, {given.model.stat().st_size / 1e6:.2g} MB")
    print(f"run       {model.run or 'unknown'}")
    print(f"task      {model.task}, {model.outputs} outputs")
    print(f"inputs    {shape}{': ' + ', '.join(model.features) if model.features else ''}")
    if model.classes:
        print(f"classes   {', '.join(model.classes)}")
    if model.adaptable:
        batch = "all samples" if model.batch_size is None else f"{model.batch_size} samples"
        print(f"adapts    {model.steps} × step size {model.step_size:g}, {batch} a step")
    else:
        print("adapts    no: it was exported for inference")
    print(f"sha256    {model.checksum}, verified")


def _measure(given: argparse.Namespace) -> None:
    model = load(given.model)
    inputs, labels = example_samples(model, given.samples)
    step_seconds(model, inputs, labels, repeats=1)
    peak = peak_memory()  # of a process that has done nothing else
    times = step_seconds(model, inputs, labels, repeats=20)
    sizes = installed_sizes()
    largest = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in list(sizes.items())[:3])
    room = "unknown on this system" if peak is None else f"{peak / 1e6:.0f} MB"
    print(f"model file     {given.model.stat().st_size / 1e6:.2g} MB")
    print(f"peak memory    {room}: import and one step on {_counted(len(inputs), 'sample')}")
    print(f"time per step  {1000 * median(times):.2f} ms, median of {len(times)}")
    print(f"installed      {sum(sizes.values()) / 1e6:.0f} MB: {largest}, …")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


if __name__ == "__main__":
    main()
