"""Whole trainings on a GPU, recorded and not, against the same on a CPU.

Runs with PyTorch, NumPy and pytest alone, like tests/nodewise/test_gpu.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedmeta
from fedmeta.algorithms import (
    ADMMFedMeta,
    Algorithm,
    Ditto,
    FedAvg,
    FedBABU,
    FedRep,
    PerFedAvg,
    PFedMe,
)
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.objective import Adaptation
from fedmeta.data.augmentation import Augmentation
from fedmeta.models.networks import ModelSettings
from problems import job_of, together

if not torch.cuda.is_available():
    pytest.skip("these trainings run on a GPU, and there is none", allow_module_level=True)

ROUNDS = 8  # two plain ones, one that is recorded, five replays
INNER = Adaptation(0.05)
NETWORK = ModelSettings("cnn", channels=(4, 8))
ALGORITHMS: dict[str, Algorithm] = {
    "as it comes": ADMMFedMeta(),
    "fixed penalty": ADMMFedMeta(INNER, 3.0),
    "learned steps": ADMMFedMeta(Adaptation(0.05, learned="tensor")),
    "two local steps": ADMMFedMeta(INNER, 3.0, local_steps=2, local_step_size=0.1),
    "per-fedavg": PerFedAvg(INNER, local_steps=2),
    "fedavg": FedAvg(local_steps=2),
    "ditto": Ditto(local_steps=2, batch_size=4, personal=True),
    "pfedme": PFedMe(local_steps=2),
    "fedrep": FedRep(local_steps=2),
    "fedbabu": FedBABU(local_steps=2),
}


def federation(seed: int = 0) -> fedmeta.Federation:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 120)
    images = rng.normal(size=(120, 2, 16, 16)) + labels[:, None, None, None]
    return fedmeta.federate(images, labels, node=np.arange(120) // 12)


def trained(algorithm: Algorithm, device: str, dtype: str = "float64") -> dict[str, torch.Tensor]:
    run = fedmeta.train(
        federation(),
        NETWORK,
        algorithm,
        TrainingSettings(rounds=ROUNDS, evaluate_every=0),
        execution=Execution(device=device, dtype=dtype),
        augmentation=Augmentation(flip=True, shift=1),
    )
    return dict(run.meta_model.theta)


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((leaf.double() - b[name].double()).abs().max()) for name, leaf in a.items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_on_a_cpu(name: str) -> None:
    there, here = (trained(ALGORITHMS[name], device) for device in ("cuda", "cpu"))
    assert difference(there, here) < 1e-8


def test_twice_the_same_bits() -> None:
    one, other = (trained(ADMMFedMeta(), "cuda", "float32") for _ in range(2))
    assert difference(one, other) == 0


def test_repeats_together() -> None:
    jobs = []
    for seed in range(3):
        jobs.append(
            job_of(
                federation(seed),
                NETWORK,
                ADMMFedMeta(),
                TrainingSettings(rounds=ROUNDS, seed=seed, evaluate_every=0),
                execution=Execution(device="cuda", dtype="float64"),
                repeats=3,
                layout=jobs[0].layout if jobs else None,
            )
        )
    for seed, run in enumerate(together(jobs)):
        assert isinstance(run, fedmeta.Run)
        alone = fedmeta.train(
            federation(seed),
            NETWORK,
            ADMMFedMeta(),
            TrainingSettings(rounds=ROUNDS, seed=seed, evaluate_every=0),
            execution=Execution(device="cuda", dtype="float64"),
        )
        assert difference(dict(run.meta_model.theta), dict(alone.meta_model.theta)) < 1e-8
