"""A round of Per-FedAvg on engines for federated learning: pfl-research, FedJAX, Flower.

Per-FedAvg with one local step is FedAvg with a meta-gradient in place of a gradient, so every
engine runs the federated averaging that it comes with, and all reach the same θ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.peers import Missing, Round
from benchmarks.peers.fedjax_round import fedjax_round
from benchmarks.peers.flower_simulation import flower_simulation
from benchmarks.peers.pfl_round import pfl_round
from benchmarks.problems import Problem, fashion, perceptron
from benchmarks.results import Entry


def measure(bench: Bench) -> Iterator[Entry]:
    """One row per network."""
    for problem in (perceptron(64, bench.size(100)), fashion(bench.size(40))):
        with_peers = partial(_compare, bench, problem)
        row = with_peers(
            {
                "pfl": partial(pfl_round, problem, bench.device),
                "fedjax": partial(fedjax_round, problem, bench.device),
            }
        )
        # Flower apart: even between its rounds ray's processes take time from whoever is next. And
        # with the small network only: on the other one its θ stayed where it was.
        flower = _with_flower(bench, problem) if problem.shape == (64,) else None
        if row is not None:
            others = {} if flower is None else flower.peer_ms
            yield replace(row, peer_ms=row.peer_ms | others)


def _with_flower(bench: Bench, problem: Problem) -> Entry | None:
    try:
        with flower_simulation(problem, bench.device) as simulated:
            return _compare(bench, problem, {"flower": lambda: simulated})
    except Missing as missing:
        bench.say(f"  flower left out: {missing}")
        return None


def _compare(bench: Bench, problem: Problem, peers: dict[str, Callable[[], Round]]) -> Entry | None:
    return bench.compare("engines", problem, partial(ours.per_fedavg, problem, bench.device), peers)
