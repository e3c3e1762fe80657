"""Ten repeats of a hundred rounds: what an experiment of the paper takes."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.problems import cifar
from benchmarks.results import Entry

REPEATS, ROUNDS = 10, 100


def measure(bench: Bench) -> Iterator[Entry]:
    """One row: our time is that of all repeats together."""
    if not (bench.on_gpu or bench.quick):
        bench.say("repeats: left out, a thousand rounds take long on a CPU (use --device cuda)")
        return
    problem = cifar(bench.size(40))
    repeats, rounds = bench.size(REPEATS), bench.size(ROUNDS)
    bench.say(f"repeats: {repeats} times {rounds} rounds, {problem.network}")
    train = ours.training(problem, bench.device, "float32", repeats, rounds)
    times = bench.times({"fedmeta": train})
    yield bench.entry("repeats", problem, times, rounds=repeats * rounds)
