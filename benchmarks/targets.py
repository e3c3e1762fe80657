"""What the figures should be, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.curvature import DIFFERENCE
from benchmarks.results import Entry
from benchmarks.rounds import AUTOCAST, JAX
from benchmarks.scaling_nodes import NODES

_DIGITS = "mlp-64-64-10"


@dataclass(frozen=True)
class Target:
    """A figure with a bound.

    Args:
        text: what is asked for, for people.
        machines: how the description of a machine that it is asked of begins.
        measured: the figure, from one machine's entries; None if something was not measured.
        bound: which it should not exceed, or not fall short of.
        at_least: which of the two.
        unit: of the figure.
    """

    text: str
    machines: str
    measured: Callable[[Sequence[Entry]], float | None]
    bound: float
    at_least: bool
    unit: str

    def reached(self, figure: float) -> bool:
        """Whether the figure keeps within the bound."""
        return figure >= self.bound if self.at_least else figure <= self.bound


@dataclass(frozen=True)
class Outcome:
    """A target, what was measured for it, and where."""

    target: Target
    machine: str
    figure: float

    @property
    def reached(self) -> bool:
        """Whether the target is reached."""
        return self.target.reached(self.figure)


def outcomes(entries: Sequence[Entry]) -> list[Outcome]:
    """Every target on every machine that it is asked of and that has the figure."""
    found = []
    for machine in sorted({entry.machine for entry in entries}):
        mine = [entry for entry in entries if entry.machine == machine]
        for target in TARGETS:
            figure = target.measured(mine) if machine.startswith(target.machines) else None
            if figure is not None:
                found.append(Outcome(target, machine, figure))
    return found


def _milliseconds(
    name: str, network: str, nodes: int, dtype: str = "float32"
) -> Callable[[Sequence[Entry]], float | None]:
    def measured(entries: Sequence[Entry]) -> float | None:
        entry = _find(entries, name, network, nodes, dtype)
        return None if entry is None else entry.median_ms

    return measured


def _over_best_loop(
    network: str, nodes: int, dtype: str = "float32"
) -> Callable[[Sequence[Entry]], float | None]:
    """The time of the fastest loop in float32 over ours."""

    def measured(entries: Sequence[Entry]) -> float | None:
        entry = _find(entries, "rounds", network, nodes, dtype)
        loops = [peer for peer in (entry.peer_ms if entry else {}) if peer not in (AUTOCAST, JAX)]
        return min((entry.ratio(peer) for peer in loops), default=None) if entry else None

    return measured


def _over(peer: str, nodes: int) -> Callable[[Sequence[Entry]], float | None]:
    """The time of a peer over ours, with the network for digits."""

    def measured(entries: Sequence[Entry]) -> float | None:
        entry = _find(entries, "rounds", _DIGITS, nodes, "float32")
        return entry.ratio(peer) if entry is not None and peer in entry.peer_ms else None

    return measured


def _exact_over_difference(entries: Sequence[Entry]) -> float | None:
    """The worst network counts."""
    rows = [entry for entry in entries if entry.name == "curvature"]
    return max((1 / row.ratio(DIFFERENCE) for row in rows), default=None)


def _over_linear(entries: Sequence[Entry]) -> float | None:
    """The longest time per node over the shortest: 1 if time is proportional to nodes."""
    rows = [_find(entries, "scaling_nodes", _DIGITS, nodes, "float32") for nodes in NODES]
    per_node = [row.median_ms / row.nodes for row in rows if row is not None]
    return max(per_node) / min(per_node) if len(per_node) == len(NODES) else None


def _find(
    entries: Sequence[Entry], name: str, network: str, nodes: int, dtype: str
) -> Entry | None:
    for entry in entries:
        if (entry.name, entry.network, entry.nodes, entry.dtype) == (name, network, nodes, dtype):
            return entry
    return None


_H200 = "GPU NVIDIA H200"

TARGETS = (
    Target(
        "CIFAR-10 net, 40 nodes: a round in at most 5 ms",
        _H200,
        _milliseconds("rounds", "cifar-10", 40),
        5,
        False,
        "ms",
    ),
    Target(
        "CIFAR-10 net, 400 nodes: a round in at most 45 ms",
        _H200,
        _milliseconds("rounds", "cifar-10", 400),
        45,
        False,
        "ms",
    ),
    Target(
        "Fashion-MNIST net, 40 nodes: a round in at most 3 ms",
        _H200,
        _milliseconds("rounds", "fashion-mnist", 40),
        3,
        False,
        "ms",
    ),
    Target(
        "10 repeats of 100 rounds, CIFAR-10 net: at most 6 s",
        _H200,
        _milliseconds("repeats", "cifar-10", 40),
        6000,
        False,
        "ms",
    ),
    Target(
        "CIFAR-10 net: no slower than the best loop",
        "CPU",
        _over_best_loop("cifar-10", 40),
        1.0,
        True,
        "×",
    ),
    Target(
        "Fashion-MNIST net: 1.4 times as fast as the best loop",
        "CPU",
        _over_best_loop("fashion-mnist", 40),
        1.4,
        True,
        "×",
    ),
    Target(
        "CIFAR-10 net in bf16: 1.6 times as fast as the best float32 loop",
        "CPU",
        _over_best_loop("cifar-10", 40, "bf16"),
        1.6,
        True,
        "×",
    ),
    Target(
        "Fashion-MNIST net in bf16: 1.6 times as fast as the best float32 loop",
        "CPU",
        _over_best_loop("fashion-mnist", 40, "bf16"),
        1.6,
        True,
        "×",
    ),
    Target(
        "Digits net, 1,000 nodes: 20 times as fast as the plain loop",
        "",
        _over("plain loop", 1000),
        20,
        True,
        "×",
    ),
    *(
        Target(
            f"Digits net, {n} nodes: no slower than plain JAX", "CPU", _over(JAX, n), 1.0, True, "×"
        )
        for n in (10, 100)
    ),
    Target(
        "Digits net, 1,000 nodes: twice as fast as plain JAX",
        "CPU",
        _over(JAX, 1000),
        2.0,
        True,
        "×",
    ),
    Target(
        "Exact curvature: at most 1.05 times the time of differences",
        "",
        _exact_over_difference,
        1.05,
        False,
        "×",
    ),
    Target(
        "100 to 10,000 nodes: time per node the same within 10 %",
        "",
        _over_linear,
        1.10,
        False,
        "×",
    ),
)
