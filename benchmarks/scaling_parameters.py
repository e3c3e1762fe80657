"""Round time against the number of parameters: ADMM-FedMeta, and an explicit Hessian beside it.

The Hessian belongs to Per-FedAvg with one local step, whose nodes compute the same meta-gradient.
It is materialised as long as it takes no more than 2 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import ours
from benchmarks.bench import Bench, check_agreement
from benchmarks.peers.explicit_hessian import explicit_hessian
from benchmarks.problems import parameters, perceptron, perceptron_name
from benchmarks.results import Entry

HESSIAN = "explicit Hessian"
COUNTS = (10**3, 3 * 10**3, 10**4, 2 * 10**4, 10**5, 3 * 10**5, 10**6, 3 * 10**6, 10**7)
TINY = (300, 600)
NODES = 2  # a Hessian takes seconds


def measure(bench: Bench) -> Iterator[Entry]:
    """One row per number of parameters."""
    widths = [_width(count) for count in (TINY if bench.quick else COUNTS)]
    smallest = perceptron(widths[0], NODES)
    check_agreement(
        smallest,
        {
            "fedmeta": ours.per_fedavg(smallest, bench.device),
            HESSIAN: explicit_hessian(smallest, bench.device),
        },
        bench.device,
    )
    for width in widths:
        problem = perceptron(width, NODES)
        row = bench.compare(
            "scaling_parameters",
            problem,
            partial(ours.admm_fedmeta, problem, bench.device),
            {HESSIAN: partial(explicit_hessian, problem, bench.device)},
            same=False,
        )
        if row is not None:
            yield row


def _width(count: int) -> int:
    """Hidden units for about so many parameters."""
    per_unit = parameters(perceptron_name(2)) - parameters(perceptron_name(1))
    return round(count / per_unit)
