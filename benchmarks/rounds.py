"""A round of ADMM-FedMeta against loops in PyTorch, with higher, with TorchOpt, and against JAX.

The loops compute in float32. In the bf16 rows we compute in bf16, and the plain loop under torch's
autocast is a further peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.peers import Round
from benchmarks.peers.higher_loop import higher_loop
from benchmarks.peers.jax_round import jax_round
from benchmarks.peers.plain_loop import plain_loop
from benchmarks.peers.torchopt_loop import torchopt_loop
from benchmarks.problems import Problem, cifar, fashion, perceptron
from benchmarks.results import Entry

AUTOCAST = "plain loop, autocast"
JAX = "plain JAX"
CHANNELS_LAST = "plain loop, channels last"


def measure(bench: Bench) -> Iterator[Entry]:
    """One row per network and precision."""
    for problem in _problems(bench):
        for precision in bench.precisions:
            loops = _loops(bench, problem, precision)
            row = bench.compare(
                "rounds",
                problem,
                partial(ours.admm_fedmeta, problem, bench.device, precision),
                {name: partial(loop, problem, bench.device) for name, loop in loops.items()},
                precision,
                same=precision == "float32",
            )
            if row is not None:
                yield row


def _loops(bench: Bench, problem: Problem, precision: str) -> dict[str, Callable[..., Round]]:
    """Who takes part; on a GPU, where loops take a hundred times as long, one is enough."""
    if bench.on_gpu:
        few = precision == "float32" and problem.nodes <= 40
        return {"plain loop": plain_loop} if few else {}
    loops: dict[str, Callable[..., Round]] = {
        "plain loop": plain_loop,
        "higher": higher_loop,
        "torchopt": torchopt_loop,
    }
    if len(problem.shape) == 3:
        loops[CHANNELS_LAST] = partial(plain_loop, channels_last=True)
    if precision == "bf16":
        loops[AUTOCAST] = partial(plain_loop, autocast=True)
    else:
        loops[JAX] = jax_round
    return loops


def _problems(bench: Bench) -> Iterator[Problem]:
    yield cifar(bench.size(40))
    yield fashion(bench.size(40))
    for nodes in (10, 100, 1000):
        if nodes == 1000 or not (bench.on_gpu or bench.quick):
            yield perceptron(64, bench.size(nodes))
    if bench.on_gpu:  # minutes on a CPU, and nothing that 40 nodes do not say
        yield cifar(bench.size(400))
