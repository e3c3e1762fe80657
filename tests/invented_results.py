"""Results that nobody measured, for every cell that is declared: to see what becomes of them."""

from __future__ import annotations

import random
from typing import Any

from experiments.cell import Cell
from experiments.registry import cells
from experiments.results import Results
from experiments.running import description
from fedmeta.config.execution import Execution
from fedmeta.studies.sequences import TaskSequence
from fedmeta.studies.tune import grid

_LEVEL = {"fashion-mnist": 0.9, "cifar10": 0.7, "cifar100": 0.55}
_BONUS = {"default": 0.09, "matched": 0.05, "tuned": 0.03}


def invent(name: str, results: Results) -> None:
    """Write a result for every cell of an experiment."""
    for cell in cells(name):
        draw = random.Random(cell.path)
        point = results.point(cell)
        found: dict[str, Any] = (
            _search(cell, draw)
            if cell.grid
            else {"repeats": [_repeat(cell, seed, draw) for seed in cell.seeds]}
        )
        about = description(cell, point, Execution())
        results.write(cell.key, {**about, "seconds": 0.0, **found})


def _search(cell: Cell, draw: random.Random) -> dict[str, Any]:
    trials = [{"point": p, "values": [0.5], "mean": draw.random()} for p in grid(cell.grid)]
    return {"trials": trials, "best": max(trials, key=lambda trial: trial["mean"])["point"]}


def _learned(seed: int, cell: Cell, draw: random.Random) -> dict[str, Any]:
    """A sequence of three tasks, of which a bit is forgotten; joint training has one row."""
    level = 0.5 + 0.3 * draw.random()
    matrix = [[0.1] * 3, *([level - 0.05 * abs(k - j) for j in range(3)] for k in range(3))]
    rows = matrix[-1:] if cell.key[-1] == "joint" else matrix
    return {"seed": seed, "diverged": False, "accuracy": rows, "precise": rows, "cost": [1.0, 2.0]}


def _repeat(cell: Cell, seed: int, draw: random.Random) -> dict[str, Any]:
    if isinstance(cell.tasks, TaskSequence):
        return _learned(seed, cell, draw)
    small = any(name in cell.path for name in ("paper-10", "rho-0.15"))
    if small or ("rho-0.35" in cell.path and seed < 4):
        return {"seed": seed, "diverged": True, "why": "training diverged in round 3"}
    data = next((name for name in cell.key if name in _LEVEL), "cifar10")
    bonus = sum(worth for name, worth in _BONUS.items() if name in cell.key[-1])
    level = _LEVEL[data] + bonus - 0.05 * ("random-pairs" in cell.key) + 0.02 * draw.gauss(0, 1)
    level -= 0.05 * ("fedavg" in cell.path) - 0.01 * cell.path.count("per-")

    def steps(one: float) -> dict[str, float]:
        more = {step: round(min(one + 0.02, 1.0), 6) for step in ("3", "5")}
        return {"0": 0.3, "1": round(min(one, 1.0), 6), **more}

    rounds = [1, *range(5, 101, 5)]
    repeat = {
        "seed": seed,
        "diverged": False,
        "accuracy": steps(level + 0.03 * draw.gauss(0, 1)),
        "precise": steps(level),
        "steps": 1,
        "rounds": 100,
        "gradients": 201.0,
        "bytes": 2e7,
        "loss": [rounds, [round(2.3 / (1 + 0.05 * t), 5) for t in rounds]],
        "reached": [rounds, [level * t / (t + 10) for t in rounds]],
        "reached_precise": [rounds, [level * t / (t + 8) for t in rounds]],
    }
    if cell.final_loss:
        repeat["final_loss"] = 0.4
    settings = cell.build()
    if settings.training.decide:
        repeat |= {"decided": level, "decided_precise": level}
    if settings.data_settings.resolved().task == "regression":
        repeat |= {"precise": {}, "own_mean": 2.0}
    if cell.tasks is not None:
        kept = level - 0.3 * ("fedavg" in cell.path)
        repeat |= {"prior": steps(kept), "prior_precise": steps(kept)}
        repeat["prior_loss"] = {"0": 1.0 - kept, "1": 0.9 - kept, "5": 0.5}
    if cell.tasks is not None and cell.tasks.dissimilarity:
        places = [draw.uniform(0.5, 4) for _ in range(10)]
        repeat["targets"] = [[psi, min(1.0, 1.1 - 0.2 * psi + draw.random() / 5)] for psi in places]
    return repeat
