"""Small networks and runs of an engine that several tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedmeta.algorithms import Algorithm
from fedmeta.config.execution import Execution
from fedmeta.data import Federation
from fedmeta.engine.local import LocalEngine
from fedmeta.models.functional import FunctionalModel
from problems import DOUBLE, Trace, classification, engine_for, flat, trace

CHUNKED = replace(DOUBLE, path="batched", chunk=2, threads=1)
VALUES, IMAGES = classification(), classification(shape=(1, 5, 5))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A module with the same weights every time, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().double()


def convolutional(outputs: int = 3) -> nn.Module:
    """A convolution, both poolings and ELU on 1×5×5 images."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 1, 2),
            nn.MaxPool2d(2, 1),
            nn.ELU(),
            nn.AvgPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(4, outputs),
        )
    )


def dropping() -> nn.Module:
    """A perceptron with dropout."""
    return seeded(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(0.4), nn.Linear(3, 3))
    )


def run(
    algorithm: Algorithm,
    model: FunctionalModel,
    execution: Execution = CHUNKED,
    data: Federation = VALUES,
    rounds: int = 3,
    **options: Any,
) -> tuple[Trace, LocalEngine]:
    """Some rounds of an engine, and the engine."""
    engine = engine_for(algorithm, data, model, execution, **options)
    return trace(engine, model, rounds), engine


def everything(result: Trace) -> dict[str, Any]:
    """θ of every round, all states and all numbers, to be compared bit for bit."""
    slots = {**dict(result.state.memory), **{f"nodes {s}": n for s, n in result.nodes.items()}}
    return {
        "theta": [theta.tolist() for theta in result.theta],
        "states": {slot: flat(leaves).tolist() for slot, leaves in slots.items()},
        "metrics": [dict(metrics) for metrics in result.metrics],
    }
