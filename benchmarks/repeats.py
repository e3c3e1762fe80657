"""Ten repeats of a hundred rounds: what an experiment of the paper takes."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.peers import Missing
from benchmarks.problems import cifar
from benchmarks.results import Entry

REPEATS, ROUNDS = 10, 100


def measure(bench: Bench) -> Iterator[Entry]:
    """One row per precision: our time is that of all repeats together."""
    if not (bench.on_gpu or bench.quick):
        bench.say("repeats: left out, a thousand rounds take long on a CPU (use --device cuda)")
        return
    problem = cifar(bench.size(40))
    repeats, rounds = bench.size(REPEATS), bench.size(ROUNDS)
    for precision in bench.precisions:
        bench.say(f"repeats: {repeats} times {rounds} rounds, {problem.network}, {precision}")
        try:
            train = ours.training(problem, bench.device, precision, repeats, rounds)
        except Missing as missing:
            bench.say(f"  left out: {missing}")
            continue
        times = bench.times({"fedmeta": train}, precision)
        yield bench.entry("repeats", problem, times, precision, rounds=repeats * rounds)
