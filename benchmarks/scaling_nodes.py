"""Round time against the number of nodes, 100 to 10,000, on the network for digits."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.problems import perceptron
from benchmarks.results import Entry

NODES = (100, 300, 1000, 3000, 10_000)
TINY = (2, 4)


def measure(bench: Bench) -> Iterator[Entry]:
    """One row per number of nodes; all sizes take turns."""
    sizes = TINY if bench.quick else NODES
    bench.say(f"scaling_nodes: {', '.join(f'{size:,}' for size in sizes)} nodes in turn")
    problems = {str(size): perceptron(64, size) for size in sizes}
    times = bench.times(
        {size: ours.admm_fedmeta(problem, bench.device) for size, problem in problems.items()}
    )
    for size, problem in problems.items():
        bench.say(f"scaling_nodes: {problem.nodes:,} nodes")
        yield bench.entry("scaling_nodes", problem, {"fedmeta": times[size]})
