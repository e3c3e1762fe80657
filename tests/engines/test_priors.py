"""Repeats with priors of their own are trained together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedmeta.algorithms import ADMMFedMeta, Algorithm, FedAvg, FedEWC, FedLwF, Target
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import ModelError
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from fedmeta.engine.stacked_priors import prior_tensors, what_differs, with_prior_tensors
from fedmeta.priors import OutputKL, Regularizer, SquaredEuclidean, SquaredMahalanobis
from fedmeta.training.job import Job
from fedmeta.training.many import why_apart
from fedmeta.training.run import Run
from fedmeta.training.train import train
from problems import UNEVEN, classification, job_of, mlp, together

DOUBLE = Execution(dtype="float64", path="batched")
ADMM = ADMMFedMeta(Adaptation(0.2), penalty=0.5)


def predict(theta: Tree, inputs: torch.Tensor) -> torch.Tensor:
    """Logits of a perceptron like `mlp`, whatever its layers are called."""
    names = [name for name in theta if name.endswith("weight")]
    for place, name in enumerate(names):
        inputs = inputs @ theta[name].T + theta[name.replace("weight", "bias")]
        inputs = inputs.tanh() if place < len(names) - 1 else inputs
    return inputs


def tensors(seed: int, like: Tree) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        for name, leaf in like.items()
    }


def prior(kind: str, seed: int) -> Regularizer:
    like = {name: leaf.detach() for name, leaf in mlp(seed=0).named_parameters()}
    theta_p = tensors(seed, like)
    if kind == "euclidean":
        return SquaredEuclidean(0.3, theta_p)
    if kind == "mahalanobis":
        weights = {name: leaf.square() for name, leaf in tensors(seed + 50, like).items()}
        return SquaredMahalanobis(0.3, theta_p, weights)
    if kind == "part":
        some = list(theta_p)[:2]
        return SquaredEuclidean(0.3, {name: theta_p[name] for name in some})
    width = next(iter(like.values())).shape[1]
    inputs = torch.randn(5, width, generator=torch.Generator().manual_seed(seed))
    return OutputKL(0.3, theta_p, predict, inputs)


def jobs_for(seeds: tuple[int, ...], algorithms: list[Any]) -> list[Job]:
    jobs: list[Job] = []
    for seed, algorithm in zip(seeds, algorithms, strict=True):
        job = job_of(
            classification(UNEVEN, ((3, 4),), seed=seed),
            mlp(seed=seed),
            algorithm,
            TrainingSettings(rounds=10, seed=seed),
            execution=DOUBLE,
            repeats=len(seeds),
            layout=jobs[0].layout if jobs else None,
        )
        jobs.append(job)
    return jobs


def require_as_alone(algorithms: list[Algorithm]) -> None:
    """What repeats come to together is what each comes to by itself."""
    seeds = tuple(range(len(algorithms)))
    outcomes = together(jobs_for(seeds, algorithms))
    for seed, algorithm, outcome in zip(seeds, algorithms, outcomes, strict=True):
        assert isinstance(outcome, Run)
        alone = train(
            classification(UNEVEN, ((3, 4),), seed=seed),
            mlp(seed=seed),
            algorithm,
            TrainingSettings(rounds=10, seed=seed),
            execution=DOUBLE,
        )
        for name, leaf in alone.meta_model.theta.items():
            assert torch.allclose(outcome.meta_model.theta[name], leaf, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("penalty", [0.5, "auto"])
@pytest.mark.parametrize("kind", ["euclidean", "mahalanobis", "part", "outputs"])
def test_each_repeat_is_held_by_its_own_prior(kind: str, penalty: Any) -> None:
    require_as_alone([replace(ADMM, penalty=penalty, prior=prior(kind, s)) for s in range(3)])


@pytest.mark.parametrize(
    ("rule", "kind"), [(FedEWC, "mahalanobis"), (FedLwF, "outputs"), (Target, "outputs")]
)
def test_nodes_of_each_repeat_hold_on_to_its_own_prior(rule: Any, kind: str) -> None:
    require_as_alone([rule(step_size=0.05, prior=prior(kind, seed)) for seed in range(3)])


def test_what_may_differ_is_tensors_alone() -> None:
    one, other = (replace(ADMM, prior=prior("euclidean", seed)) for seed in (0, 1))
    assert what_differs(one, other) is None
    assert what_differs(ADMM, ADMMFedMeta(Adaptation(0.2), penalty=0.5)) is None
    assert what_differs(one, replace(other, penalty=0.7)) == "penalty"
    assert what_differs(one, ADMM) == "prior"
    assert what_differs(one, replace(other, prior=prior("mahalanobis", 1))) == "prior"
    assert what_differs(one, replace(other, prior=prior("part", 1))) == "prior"
    stronger = SquaredEuclidean(0.4, prior_tensors(other)["prior"])
    assert what_differs(one, replace(other, prior=stronger)) == "prior"
    assert what_differs(one, FedAvg()) == "algorithm"
    assert with_prior_tensors(FedAvg(), {}) == FedAvg()
    jobs = jobs_for((0, 1), [one, replace(other, prior=stronger)])
    assert why_apart(jobs) == "their algorithms differ in prior"


def test_a_prior_that_is_not_finite_is_found_in_any_repeat() -> None:
    algorithms = [replace(ADMM, prior=prior("euclidean", seed)) for seed in (0, 1)]
    prior_tensors(algorithms[1])["prior"]["0.bias"][0] = torch.nan
    with pytest.raises(ModelError, match="NaN"):
        together(jobs_for((0, 1), algorithms))
