"""Exact curvature against the paper's central difference: which should cost no less."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import ours
from benchmarks.bench import Bench
from benchmarks.problems import cifar, fashion, perceptron
from benchmarks.results import Entry
from fedmeta.core.meta_gradient import Curvature

DIFFERENCE: Curvature = "finite-difference"


def measure(bench: Bench) -> Iterator[Entry]:
    """One row per network."""
    for problem in (
        cifar(bench.size(40)),
        fashion(bench.size(40)),
        perceptron(64, bench.size(1000)),
    ):
        rounds = partial(ours.admm_fedmeta, problem, bench.device)
        difference = partial(rounds, curvature=DIFFERENCE)
        row = bench.compare("curvature", problem, rounds, {DIFFERENCE: difference}, same=False)
        if row is not None:
            yield row
