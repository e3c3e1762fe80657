"""Rounds of fedmeta: the only file here that touches its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from benchmarks.peers import Missing, Round, Theta
from benchmarks.problems import SEED, Problem
from fedmeta.algorithms import ADMMFedMeta, Algorithm, PerFedAvg
from fedmeta.data import Scaling
from fedmeta.engines.execution import Execution, machine
from fedmeta.job import Job, TrainingSettings, prepare
from fedmeta.objective import Adaptation, Curvature

_UNSCALED = Scaling(np.zeros(()), np.ones(()))


def admm_fedmeta(
    problem: Problem, device: str, precision: str = "float32", curvature: Curvature = "exact"
) -> Round:
    """Rounds of ADMM-FedMeta."""
    algorithm = ADMMFedMeta(
        Adaptation(problem.step_size),
        curvature=curvature,
        penalty=problem.penalty,
        penalty_unit="weight",
    )
    return _rounds(_job(problem, algorithm, device, precision))


def per_fedavg(problem: Problem, device: str) -> Round:
    """Rounds of Per-FedAvg with one local step."""
    algorithm = PerFedAvg(Adaptation(problem.step_size), step_size=problem.meta_step_size)
    return _rounds(_job(problem, algorithm, device, "float32"))


def training(
    problem: Problem, device: str, precision: str, repeats: int, rounds: int
) -> Callable[[], None]:
    """Whole trainings by ADMM-FedMeta, from θ¹ every time."""
    algorithm = ADMMFedMeta(
        Adaptation(problem.step_size), penalty=problem.penalty, penalty_unit="weight"
    )
    job = _job(problem, algorithm, device, precision)

    def train() -> None:
        with machine(job.layout.execution):
            for _ in range(repeats):
                engine = job.engine()
                state, nodes = engine.start(job.model.theta)
                for number in range(1, rounds + 1):
                    state, nodes, _ = engine.round(state, nodes, number)

    return train


def _job(problem: Problem, algorithm: Algorithm, device: str, precision: str) -> Job:
    return prepare(
        problem.federation,
        problem.model,
        algorithm,
        TrainingSettings(seed=SEED),
        scaling=_UNSCALED,
        execution=_execution(device, precision),
    )


def _rounds(job: Job) -> Round:
    engine, number = job.engine(), 0
    with machine(job.layout.execution):
        state, nodes = engine.start(job.model.theta)

    def one_round() -> Theta:
        nonlocal state, nodes, number
        number += 1
        with machine(job.layout.execution):
            state, nodes, _ = engine.round(state, nodes, number)
        return state.theta

    return one_round


def _execution(device: str, precision: str) -> Execution:
    chosen: dict[str, Any] = {"device": device}
    if device.startswith("cuda"):  # half of it: peers live on the same GPU
        chosen["memory"] = torch.cuda.get_device_properties(device).total_memory / 2**31
    if precision != "float32":
        if "precision" not in {field.name for field in fields(Execution)}:
            raise Missing(f"this version of fedmeta computes in float32, not in {precision}")
        chosen["precision"] = precision
    return Execution(**chosen)
