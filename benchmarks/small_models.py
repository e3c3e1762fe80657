"""A round of a small perceptron with few and with many nodes, in turns with plain JAX, on a CPU.

`python -m benchmarks.small_models` prints the least wall time and the least CPU time of many
rounds: on a machine with other work to do that is what a round takes, and a median is not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from benchmarks import ours
from benchmarks.bench import check_agreement
from benchmarks.peers import Missing, Round
from benchmarks.peers.jax_round import jax_round
from benchmarks.problems import Problem, perceptron

NODES = (10, 100, 1000, 10_000)
_WARM = 2.5  # seconds: recordings are made by then


def least(rounds: Mapping[str, Round], seconds: float) -> dict[str, tuple[float, float]]:
    """The least wall and CPU time of a round of each, in ms, of as many turns as there is time."""
    for one_round in rounds.values():
        start = time.perf_counter()
        while time.perf_counter() - start < _WARM:
            one_round()
    found = {name: (float("inf"), float("inf")) for name in rounds}
    begin, turns = time.perf_counter(), 0
    while turns < 10 or time.perf_counter() - begin < seconds:
        turns += 1
        for name, one_round in rounds.items():
            wall, cpu = time.perf_counter(), time.process_time()
            one_round()
            now = 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)
            found[name] = min(found[name][0], now[0]), min(found[name][1], now[1])
    return found


def compared(problem: Problem, seconds: float) -> dict[str, tuple[float, float]]:
    """Ours and plain JAX, if it is there, after a check that they compute the same."""
    rounds = {"fedmeta": ours.admm_fedmeta(problem, "cpu")}
    try:
        rounds["plain JAX"] = jax_round(problem, "cpu")
    except Missing as missing:
        print(f"plain JAX left out: {missing}")
    check_agreement(problem, rounds, "cpu")
    return least(rounds, seconds)


def main() -> None:
    """One line for every number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--seconds", type=float, default=20.0, help="for every number of nodes")
    chosen = parser.parse_args()
    for nodes in chosen.nodes:
        problem = perceptron(chosen.hidden, nodes)
        found = compared(problem, chosen.seconds)
        mine, line = found["fedmeta"], f"{problem.network}, {nodes:,} nodes"
        for name, (wall, cpu) in found.items():
            ratio = f" ({wall / mine[0]:.2f} x ours)" if name != "fedmeta" else ""
            line += f"; {name} {wall:.3f} ms, CPU {cpu:.3f} ms{ratio}"
        print(f"{line}; {1e3 * mine[0] / nodes:.1f} us a node", flush=True)


if __name__ == "__main__":
    main()
