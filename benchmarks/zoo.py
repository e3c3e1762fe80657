"""A round with networks that are neither the paper's nor chains of layers, against a plain loop.

    python -m benchmarks.zoo --nodes 10 50 --out zoo.json

Each network is trained by our engine on the path that it chooses and by a loop over nodes in plain
PyTorch, in turns, after a check that both change θ alike. Above 1 the loop takes longer.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import ours
from benchmarks.bench import Bench, check_agreement
from benchmarks.peers import Round, Theta
from benchmarks.peers.plain_loop import plain_loop
from benchmarks.problems import CLASSES, SEED, Problem, federation

WARM = 12  # rounds, after which recordings are made


class Residual(nn.Module):
    """Two convolutions and what went in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x + f(x)."""
        out: Tensor = torch.relu(x + self.second(torch.relu(self.first(x))))
        return out


class Recurrent(nn.Module):
    """A recurrent layer whose last output is classified."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer = kind(6, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Of a batch of series."""
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Attention(nn.Module):
    """One layer of self-attention over the steps of a series."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Of a batch of series."""
        x = self.enter(x)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        out: Tensor = self.head(x.mean(1))
        return out


class Embedded(nn.Module):
    """Numbers in classes of a grid, each with a vector of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 8)
        self.head = nn.Linear(20 * 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Of a batch of 20 numbers."""
        places = (x.clamp(-2, 1.99) * 8 + 16).long()
        out: Tensor = self.head(self.table(places).flatten(1))
        return out


def _convolutions(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


IMAGE, SERIES = (3, 16, 16), (24, 6)
NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "group norm": (
        IMAGE,
        lambda: _convolutions(
            nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3), width=16
        ),
    ),
    "depthwise": (
        IMAGE,
        lambda: _convolutions(
            nn.Conv2d(3, 16, 1), nn.ELU(), nn.Conv2d(16, 16, 3, groups=16), nn.ELU(), width=16
        ),
    ),
    "dilated": (
        IMAGE,
        lambda: _convolutions(
            nn.Conv2d(3, 16, 3, dilation=2), nn.ELU(), nn.Conv2d(16, 16, 3, dilation=2), width=16
        ),
    ),
    "residual": (IMAGE, lambda: _convolutions(nn.Conv2d(3, 16, 3), Residual(16), width=16)),
    "series": (
        (6, 64),
        lambda: nn.Sequential(
            nn.Conv1d(6, 16, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, CLASSES),
        ),
    ),
    "layer norm": (
        (64,),
        lambda: nn.Sequential(
            nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, CLASSES)
        ),
    ),
    "lstm": (SERIES, lambda: Recurrent(nn.LSTM)),
    "gru": (SERIES, lambda: Recurrent(nn.GRU)),
    "attention": (SERIES, Attention),
    "embedding": ((20,), Embedded),
}  # fmt: skip


def problem(name: str, nodes: int) -> Problem:
    """The network of that name with so many nodes."""
    shape, make = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return Problem(name, make(), federation(shape, nodes))


def plainly(task: Problem) -> Round:
    """The plain loop, with the kernel of attention that has second derivatives."""
    one_round = plain_loop(task, "cpu")

    def mathematical() -> Theta:
        with sdpa_kernel(SDPBackend.MATH):
            return one_round()

    return mathematical


def main(arguments: Sequence[str] | None = None) -> None:
    """A line per network and number of nodes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--only", nargs="+", default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    bench, rows = Bench(), []
    for name in asked.only:
        for nodes in asked.nodes:
            task = problem(name, nodes)
            rounds = {"fedmeta": ours.admm_fedmeta(task, "cpu"), "loop": plainly(task)}
            check_agreement(task, copy.copy(rounds), "cpu")
            for _ in range(WARM):
                rounds["fedmeta"]()
            times = bench.times(rounds)
            ratio = times["loop"] / times["fedmeta"]
            rows.append({"network": name, "nodes": nodes, **times, "ratio": ratio})
            print(
                f"{name:12} {nodes:4} nodes: {times['fedmeta']:8.2f} ms, "
                f"loop {times['loop']:8.2f} ms: {ratio:.2f} ×",
                flush=True,
            )
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
