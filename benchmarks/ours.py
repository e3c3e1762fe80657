"""Rounds of fedmeta: the only file here that touches its engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.peers import Round, Theta
from benchmarks.problems import SEED, Problem
from fedmeta.algorithms import ADMMFedMeta, Algorithm, PerFedAvg
from fedmeta.config.execution import Execution, Precision
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.meta_gradient import Curvature
from fedmeta.core.objective import Adaptation
from fedmeta.data import Scaling
from fedmeta.data.augmentation import Augmentation
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.training.job import Job, prepare

_UNSCALED = Scaling(np.zeros(()), np.ones(()))
_PRECISIONS: dict[str, Precision] = {"float32": "full", "tf32": "tf32", "bf16": "bf16"}


def admm_fedmeta(
    problem: Problem, device: str, precision: str = "float32", curvature: Curvature = "exact"
) -> Round:
    """Rounds of ADMM-FedMeta."""
    algorithm = ADMMFedMeta(
        Adaptation(problem.step_size),
        curvature=curvature,
        penalty=problem.penalty,
        penalty_unit="weight",
        resplit="none",
    )
    return _rounds(_job(problem, algorithm, device, precision))


def per_fedavg(problem: Problem, device: str) -> Round:
    """Rounds of Per-FedAvg with one local step."""
    algorithm = PerFedAvg(Adaptation(problem.step_size), step_size=problem.meta_step_size)
    return _rounds(_job(problem, algorithm, device, "float32"))


def training(
    problem: Problem, device: str, precision: str, repeats: int, rounds: int
) -> Callable[[], None]:
    """Whole trainings by ADMM-FedMeta, all repeats together, from their own θ¹ every time."""
    algorithm = ADMMFedMeta(
        Adaptation(problem.step_size),
        penalty=problem.penalty,
        penalty_unit="weight",
        resplit="none",
    )
    job = _job(problem, algorithm, device, precision, repeats)
    cohorts = [Cohort(problem.federation, _UNSCALED, seed) for seed in range(repeats)]
    engine = LocalEngine(algorithm, cohorts, job.layout)
    starts = [problem.start(device, seed) for seed in range(repeats)]
    theta = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}

    def train() -> None:
        with machine(job.layout.execution):
            state, nodes = engine.start(theta)
            for number in range(1, rounds + 1):
                state, nodes, reading = engine.round(state, nodes, number)
            dict(reading.of(0))  # wait for the last one

    return train


def _job(
    problem: Problem, algorithm: Algorithm, device: str, precision: str, repeats: int = 1
) -> Job:
    spec = RunSpec(
        data=None,
        model=problem.model,
        algorithm=algorithm,
        training=TrainingSettings(seed=SEED),
        augmentation=Augmentation(flip=False, shift=0),  # peers have none
        execution=_execution(device, precision),
    )
    return prepare(spec, problem.federation, scaling=_UNSCALED, repeats=repeats)


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
    memory = None
    if device.startswith("cuda"):  # half of it: peers live on the same GPU
        memory = torch.cuda.get_device_properties(device).total_memory / 2**31
    chosen = _PRECISIONS[precision]
    return Execution(device=device, memory=memory, precision=chosen)
