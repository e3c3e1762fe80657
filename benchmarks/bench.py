"""What all benchmarks share: where they run, how long, and how a comparison is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.limits import limit_ms, matrix_rate
from benchmarks.machine import description
from benchmarks.peers import Missing, Round, Theta
from benchmarks.problems import Problem
from benchmarks.results import Entry
from benchmarks.timing import float32_rounding, interleaved

# Of the change of θ over two rounds. Rounding alone gives 1e-6, but now and then two pixels of a
# pooling window are so near that it decides which is the larger one.
TOLERANCE = 1e-3


class Disagreement(Exception):  # noqa: N818
    """A competitor computes something else, so that its time says nothing."""


@dataclass(frozen=True)
class Bench:
    """Where and how carefully to measure.

    Args:
        device: "cpu" or "cuda".
        quick: tiny sizes that only show that everything runs.
        say: prints a line of progress.
    """

    device: str = "cpu"
    quick: bool = False
    say: Callable[[str], None] = print
    _rates: dict[str, float] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device.startswith("cuda")

    @property
    def precisions(self) -> tuple[str, ...]:
        """What a round can be computed in here."""
        return ("float32", "tf32", "bf16") if self.on_gpu else ("float32", "bf16")

    def size(self, full: int, tiny: int = 2) -> int:
        """A number of nodes or units: the full one, or a tiny one when it must be quick."""
        return min(full, tiny) if self.quick else full

    def times(
        self, competitors: Mapping[str, Callable[[], object]], precision: str = "float32"
    ) -> dict[str, float]:
        """Median times, in ms, of competitors that take turns."""
        repetitions, seconds = (100, 6.0) if self.on_gpu else (15, 60.0)
        warm = 0.0 if self.on_gpu or self.quick else 3.0
        with float32_rounding(precision == "tf32"):
            return interleaved(competitors, self.device, self.size(repetitions, 1), seconds, warm)

    def limit(self, problem: Problem, precision: str = "float32") -> float:
        """The arithmetic limit of a round, in ms; the rate is measured once in a run."""
        if precision not in self._rates:
            rate = matrix_rate(self.device, precision, 256 if self.quick else None)
            self._rates[precision] = rate
            self.say(f"matrix product in {precision}: {rate / 1e9:,.0f} GFLOP/s")
        return limit_ms(problem, self._rates[precision])

    def compare(
        self,
        name: str,
        problem: Problem,
        ours: Callable[[], Round],
        peers: Mapping[str, Callable[[], Round]],
        precision: str = "float32",
        same: bool = True,
    ) -> Entry | None:
        """One row: our round and others' in turn, after a check that they compute the same.

        Args:
            name: the benchmark.
            problem: what everyone works on.
            ours: makes our rounds.
            peers: make theirs; who cannot take part is named and left out.
            precision: what we compute in.
            same: whether everyone must reach the same θ (not so in short types).

        Returns:
            The row, or nothing if we cannot compute in that precision.
        """
        self.say(f"{name}: {problem.network}, {problem.nodes:,} nodes, {precision}")
        try:
            competitors = {"fedmeta": ours()}
        except Missing as missing:
            self.say(f"  left out: {missing}")
            return None
        for peer, make in peers.items():
            try:
                competitors[peer] = make()
            except Missing as missing:
                self.say(f"  {peer} left out: {missing}")
        with float32_rounding(precision == "tf32"):
            if same:
                check_agreement(problem, competitors, self.device)
            times = self.times(competitors, precision)
        return self.entry(name, problem, times, precision)

    def entry(
        self,
        name: str,
        problem: Problem,
        times: Mapping[str, float],
        precision: str = "float32",
        rounds: int = 1,
    ) -> Entry:
        """The row for the results, printed too.

        Args:
            name: the benchmark.
            problem: what everyone worked on.
            times: in ms; ours is "fedmeta".
            precision: what we computed in.
            rounds: how many of them a time stands for.
        """
        peers = {peer: ms for peer, ms in times.items() if peer != "fedmeta"}
        limit = rounds * self.limit(problem, precision)
        entry = Entry(
            name,
            description(self.device),
            problem.network,
            problem.nodes,
            precision,
            times["fedmeta"],
            peers,
            limit,
        )
        share = 100 * limit / entry.median_ms
        self.say(f"  fedmeta {entry.median_ms:.4g} ms, the arithmetic limit is {share:.2g} % of it")
        for peer, ms in peers.items():
            self.say(f"  {peer} {ms:.4g} ms, {entry.ratio(peer):.2f} times ours")
        return entry


def check_agreement(problem: Problem, competitors: Mapping[str, Round], device: str) -> None:
    """Let everyone do two rounds (in the second one duals count) and compare θ with our own.

    Raises:
        Disagreement: if someone's change of θ differs from ours by more than 1e-3 of it.
    """
    start = {name: leaf.detach() for name, leaf in problem.module(device).named_parameters()}
    reached = {}
    for name, one_round in competitors.items():
        one_round()
        reached[name] = {key: leaf.to(device).clone() for key, leaf in one_round().items()}
    ours = reached["fedmeta"]
    for name, theta in reached.items():
        difference = _distance(theta, ours) / _distance(ours, start)
        if not difference <= TOLERANCE:
            raise Disagreement(
                f"{name} differs from fedmeta by {difference:.1e} of the change of θ"
            )


def _distance(a: Theta, b: Theta) -> float:
    return math.sqrt(sum(float((leaf - b[name]).square().sum()) for name, leaf in a.items()))
