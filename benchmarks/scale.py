"""Very many nodes on one machine: rounds of a hundred thousand perceptrons, of ten thousand CNNs.

    PYTHONPATH=src python3 benchmarks/scale.py mlp --memory 8
    PYTHONPATH=src python3 benchmarks/scale.py cifar --memory 20 --states disk

Prints the time of every round and the peak memory of the process (and of the GPU), against the
budget that was given. Samples are random bytes; every node has 15 support and 15 query samples of
its own, and keeps a dual as large as the model.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.problems import CLASSES, QUERY, SUPPORT
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.core.objective import Adaptation
from fedmeta.data import Federation, Node, Scaling, Task
from fedmeta.engine.machine import machine
from fedmeta.models.networks import ModelSettings
from fedmeta.training.job import prepare

_GIB = 2**30
SIZES = {
    "mlp": (100_000, (64,), ModelSettings("mlp")),
    "cifar": (10_000, (3, 32, 32), ModelSettings("cnn", last_pooling="average")),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run some rounds and say what they took."""
    options = _parser().parse_args(arguments)
    nodes, shape, model = SIZES[options.network]
    nodes = options.nodes or nodes
    execution = Execution(
        device=options.device, memory=options.memory, states=options.states, threads=options.threads
    )
    federation = _federation(nodes, shape)
    algorithm = ADMMFedMeta(Adaptation(0.01), penalty=28.0, penalty_unit="weight", resplit="none")
    spec = RunSpec(data=None, model=model, algorithm=algorithm, execution=execution)
    scaling = Scaling(np.full((), 127.5), np.full((), 73.9))
    job = prepare(spec, federation, scaling=scaling)
    engine, chosen = job.engine(), job.layout.execution
    parameters = sum(leaf.numel() for leaf in job.model.theta.values())
    print(
        f"{nodes:,} nodes × {parameters:,} parameters: {nodes * parameters * 4 / _GIB:.2f} GiB of "
        f"duals ({chosen.states}), {federation.inputs.nbytes / _GIB:.2f} GiB of samples, "
        f"{chosen.chunk} nodes at once, budget {chosen.memory:g} GiB",
        flush=True,
    )
    with machine(chosen):
        state, states = engine.start(job.model.theta)
        for number in range(1, options.rounds + 1):
            begin = time.perf_counter()
            state, states, reading = engine.round(state, states, number)
            loss = reading["meta_loss"]
            print(
                f"round {number}: {time.perf_counter() - begin:.1f} s, loss {loss:.4f}, "
                f"{_peaks(options.device)}",
                flush=True,
            )
    for note in engine.notes():
        print(note)


def _federation(nodes: int, shape: tuple[int, ...]) -> Federation:
    rng = np.random.default_rng(0)
    each = SUPPORT + QUERY
    inputs = rng.integers(0, 256, (nodes * each, *shape), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, nodes * each)
    rows = np.arange(nodes * each).reshape(nodes, each)
    members = [Node(f"n{i}", "source", row[:SUPPORT], row[SUPPORT:]) for i, row in enumerate(rows)]
    task = Task("classification", CLASSES, tuple(str(c) for c in range(CLASSES)))
    return Federation(inputs, labels, task, members, name="random bytes")


def _peaks(device: str) -> str:
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    text = f"peak memory of the process {process:.2f} GiB"
    if device.startswith("cuda"):
        text += f", of the GPU {torch.cuda.max_memory_reserved() / _GIB:.2f} GiB"
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Rounds of very many nodes.")
    parser.add_argument("network", choices=SIZES)
    parser.add_argument("--nodes", type=int, help="instead of the usual number")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", type=float, help="budget in GiB")
    parser.add_argument("--states", default="auto", choices=("auto", "device", "host", "disk"))
    parser.add_argument("--threads", type=int)
    return parser


if __name__ == "__main__":
    main()
