"""The command line: `fedmeta-edge` and its commands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from fedmeta_edge.adaptation import adapt
from fedmeta_edge.calibration import margins
from fedmeta_edge.decision import Decision, adapt_if_it_helps
from fedmeta_edge.device import begin, learn, reopen, watch
from fedmeta_edge.errors import EdgeError, printable
from fedmeta_edge.measuring import example_samples, installed_sizes, peak_memory, step_seconds
from fedmeta_edge.model import Array, Model, calibrated, load, probabilities
from fedmeta_edge.samples import read_samples
from fedmeta_edge.weights import read_weights, write_weights


def main() -> NoReturn:
    """The program `fedmeta-edge`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    try:
        given = _parser().parse_args(arguments)
        _DOES[given.command](given)
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
    learning = commands.add_parser("learn", help="adapt if it helps, and keep that in a folder")
    watching = commands.add_parser("watch", help="judge what a folder has learned on new samples")
    state = commands.add_parser("status", help="what a folder has noticed, in numbers")
    for each in (adapting, telling, measuring):
        each.add_argument("model", type=Path, help="what fedmeta export wrote")
    predicting.add_argument(
        "model", type=Path, help="what fedmeta export wrote, or a device's folder"
    )
    for each in (learning, watching, state):
        each.add_argument("folder", type=Path, help="of this device: model, head and state")
    learning.add_argument(
        "--model", type=Path, help="begin anew with what fedmeta export --adaptable wrote"
    )
    for each in (adapting, predicting, telling, measuring, learning, watching):
        each.add_argument(
            "--require-signature",
            type=Path,
            metavar="PUBKEY",
            help="refuse a model that the owner of this Ed25519 key (PEM) has not signed",
        )
    for each in (adapting, predicting, learning, watching):
        each.add_argument("--data", type=Path, required=True, help=".csv or .npz")
        each.add_argument("--label", help="label column or array [label; y in .npz files]")
    adapting.add_argument("--steps", type=int, help="gradient steps [as trained]")
    adapting.add_argument("--step-size", type=float, help="α [as trained]")
    for each in (adapting, learning):
        each.add_argument("--seed", type=int, default=0, help="of all draws [0]")
    adapting.add_argument(
        "--decide",
        action="store_true",
        help="adapt only if it helps: the samples choose how, and whether",
    )
    adapting.add_argument("-o", "--out", type=Path, required=True, help="adapted weights, .npz")
    measuring.add_argument("--samples", type=int, default=12, help="that it adapts to [12]")
    predicting.add_argument(
        "--weights", type=Path, help="adapted weights [the model's own, or the folder's]"
    )
    predicting.add_argument(
        "--abstain", type=float, metavar="SHARE", help="leave so many answers open, e.g. 0.1 [none]"
    )
    return parser


def _adapt(given: argparse.Namespace) -> None:
    model = load(given.model, given.require_signature)
    model.check_adaptable()
    if given.seed < 0:
        raise EdgeError(f"seed is {given.seed}", "give a whole number of at least 0")
    samples = read_samples(given.data, model, given.label)
    assert samples.labels is not None  # read_samples asks for them
    parts = samples.inputs, samples.labels, given.steps, given.seed, given.step_size
    if given.decide:
        adapted, decision = adapt_if_it_helps(model, *parts)
        print(_reasons(decision))
    else:
        adapted = adapt(model, *parts)
    count = len(samples.inputs)
    steps = _counted(adapted.steps, "step")
    print(f"{steps} on {_counted(count, 'sample')}, {1000 * adapted.seconds:.2f} ms per step")
    write_weights(given.out, model, adapted)
    print(f"weights written to {given.out}")


def _reasons(decision: Decision) -> str:
    """What was decided, and why."""
    if not decision.losses:
        return f"decided: {decision.choice}, since no sample could be left out"
    losses = ", ".join(f"{name} {loss:.3g}" for name, loss in decision.losses.items())
    return f"decided: {decision.choice}; loss of {decision.counted} samples left out: {losses}"


def _predict(given: argparse.Namespace) -> None:
    if given.model.is_dir():
        device = reopen(given.model, given.require_signature)
        model, weights = device.model, device.weights
    else:
        model, weights = load(given.model, given.require_signature), None
    if given.weights is not None:
        weights = read_weights(given.weights, model)
    samples = read_samples(given.data, model, given.label, labelled=False)
    logits = model.logits(samples.inputs, weights)
    outputs = probabilities(logits) if model.classes else logits
    answered = np.ones(len(outputs), np.bool_)
    if given.abstain is not None:
        least = calibrated(model).threshold(given.abstain)
        answered = margins(logits) >= least
    if not model.classes:
        print(",".join(f"output_{number}" for number in range(model.outputs)))
        for row in outputs:
            print(",".join(f"{value:.6g}" for value in row))
    elif model.calibration is None:
        print("class,probability")
        for row in outputs:
            print(f"{printable(model.classes[row.argmax()])},{row.max():.4f}")
    else:
        print("class,probability,confidence")
        sure = model.calibration.confidence(margins(logits))
        for row, confidence, said in zip(outputs, sure, answered, strict=True):
            name = printable(model.classes[row.argmax()]) if said else ""
            print(f"{name},{row.max():.4f},{confidence:.4f}")
    if samples.labels is not None:
        print(_judgement(model, outputs, samples.labels, answered), file=sys.stderr)


def _judgement(model: Model, outputs: Array, labels: Array, answered: npt.NDArray[np.bool_]) -> str:
    if not model.classes:
        return f"mse {np.square(outputs - labels).mean():.4g} on {len(labels)} samples"
    right = outputs.argmax(axis=1) == labels
    text = f"accuracy {100 * right.mean():.1f} % on {len(labels)} samples"
    if answered.all():
        return text
    of = f"{100 * right[answered].mean():.1f} %" if answered.any() else "unknown"
    return f"{text}, {of} on the {answered.sum()} that were answered"


def _learn(given: argparse.Namespace) -> None:
    if given.seed < 0:
        raise EdgeError(f"seed is {given.seed}", "give a whole number of at least 0")
    signed = given.require_signature
    if given.model is None:
        device = reopen(given.folder, signed)
    else:
        device = begin(given.folder, given.model, signed)
    samples = read_samples(given.data, device.model, given.label)
    device, decision = learn(device, samples, given.seed)
    print(_reasons(decision), file=sys.stderr)
    print(json.dumps(device.report()))


def _watch(given: argparse.Namespace) -> None:
    device = reopen(given.folder, given.require_signature)
    samples = read_samples(given.data, device.model, given.label, labelled=False)
    print(json.dumps(watch(device, samples).report()))


def _status(given: argparse.Namespace) -> None:
    print(json.dumps(reopen(given.folder).report()))


def _info(given: argparse.Namespace) -> None:
    model = load(given.model, given.require_signature)
    shape = " × ".join(str(size) for size in model.input_shape)
    print(f"model     {given.model}, {given.model.stat().st_size / 1e6:.2g} MB")
    print(f"run       {printable(model.run or 'unknown')}")
    print(f"task      {model.task}, {model.outputs} outputs")
    print(
        f"inputs    {shape}{printable(': ' + ', '.join(model.features)) if model.features else ''}"
    )
    if model.classes:
        print(f"classes   {printable(', '.join(model.classes))}")
    if model.adaptable:
        batch = "all samples" if model.batch_size is None else f"{model.batch_size} samples"
        how = f"{model.steps} × step size {model.step_size:g}, {batch} a step"
        if model.by_means:
            how = f"by class means, sharpness {model.step_size:g}"
        print(f"adapts    {how}")
    else:
        print("adapts    no: it was exported for inference")
    if model.calibration is not None:
        seen = "that it has not seen" if model.calibration.folds else "that it was trained on"
        seen += ", which decided how to adapt" if model.calibration.decides else ""
        print(f"calibrated on {sum(model.calibration.total)} samples of nodes {seen}")
    signed = given.require_signature
    by = "; not signed: anybody may have written it" if signed is None else f", signed by {signed}"
    print(f"sha256    {model.checksum}, checksum ok{by}")


def _measure(given: argparse.Namespace) -> None:
    model = load(given.model, given.require_signature)
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


_DOES = {
    "adapt": _adapt,
    "predict": _predict,
    "learn": _learn,
    "watch": _watch,
    "status": _status,
    "info": _info,
    "measure": _measure,
}


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


if __name__ == "__main__":
    main()
