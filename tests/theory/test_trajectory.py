"""A run computed again: the same bits, its iterates, and jobs that cannot be looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedmeta
import problems
from fedmeta.core.errors import ModelError, RunFolderError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import subtract
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.priors import OutputKL
from fedmeta.theory.closed_form import is_softmax_regression
from fedmeta.theory.diagnose import DiagnosisSettings, diagnose_run
from fedmeta.theory.estimation import Search
from fedmeta.theory.trajectory import recompute
from fedmeta.training.job import Job
from problems import classification, paper_admm

TRAINING = fedmeta.TrainingSettings(rounds=5, evaluate_every=0)
LIGHT = DiagnosisSettings(nodes=2, search=Search(iterations=3, tolerance=0.1, turns=1, samples=1))


def job_of(algorithm: Any, module: nn.Module | None = None, **more: Any) -> Job:
    model = fedmeta.ModelSettings("linear") if module is None else module
    return problems.job_of(classification(), model, algorithm, TRAINING, **more)


def trained(algorithm: Any, **more: Any) -> fedmeta.Run:
    model = fedmeta.ModelSettings("linear")
    return fedmeta.train(classification(), model, algorithm, TRAINING, **more)


@pytest.mark.parametrize("penalty", ["auto", 5.0])
def test_a_replay_ends_where_the_run_did(penalty: Any) -> None:
    algorithm = fedmeta.ADMMFedMeta(Adaptation(0.05), penalty)
    run, told = trained(algorithm), []
    seen = recompute(job_of(algorithm), run.history, every=2, points=2, on_round=told.append)
    assert seen.deviation == 0
    assert [one.round for one in seen.measurements] == [1, 3, 5]
    assert all(one.moved is None for one in seen.measurements)  # no two rounds in a row
    assert len(seen.iterates) == 3
    assert told == list(run.history)
    for name, leaf in seen.theta.items():
        assert torch.equal(leaf, run.meta_model.theta[name].double())
    start = job_of(algorithm).model.theta
    apart = subtract(seen.iterates[0], {n: leaf.double() for n, leaf in start.items()})
    assert all(not leaf.any() for leaf in apart.values())


def test_another_history_is_noticed() -> None:
    algorithm = paper_admm(Adaptation(0.05), 5.0)
    history = [dict(record) for record in trained(algorithm).history]
    history[3]["meta_loss"] *= 1.5
    found = diagnose_run(job_of(algorithm), history, LIGHT)
    assert found.trajectory.deviation == pytest.approx(1 / 3)
    assert any("that is not the same run" in note for note in found.notes)


def test_what_cannot_be_looked_at() -> None:
    with pytest.raises(SettingError, match="the run is one of fedavg"):
        recompute(job_of(fedmeta.FedAvg()), [])
    job = job_of(paper_admm())
    with pytest.raises(RunFolderError, match="no rounds to look at"):
        recompute(job, [])
    tight = replace(job.layout.execution, memory=1e-9)
    cramped = replace(job, layout=replace(job.layout, execution=tight))
    with pytest.raises(SettingError, match="takes some"):
        recompute(cramped, [{}])

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(x[:, None])[0][:, 0])  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match="recurrent layers"):
        recompute(job_of(paper_admm(), Recurrent()), [{}])


def test_a_divergence_of_outputs_has_no_forgetting_bound_but_a_smoothness() -> None:
    federation = classification()
    theta = job_of(paper_admm()).model.theta
    model = job_of(paper_admm()).model
    inputs = torch.tensor(federation.inputs[:4], dtype=torch.float32)
    other = {name: leaf + 0.3 for name, leaf in theta.items()}
    prior = OutputKL(0.5, other, lambda t, x: model(t, x, None), inputs)
    algorithm = paper_admm(Adaptation(0.05), 5.0, prior=prior)
    run = trained(algorithm)
    found = diagnose_run(job_of(algorithm), run.history, LIGHT)
    assert not any(each.bound.name.startswith("forgetting") for each in found.bounds)
    assert all(least > 0 for least in found.least[0])
    # μ_r was looked for, so nothing is proven, though the model is softmax regression.
    assert "holds" not in {verdict.status for verdict in found.verdicts}


def test_what_is_softmax_regression() -> None:
    linear = nn.Linear(3, 2)
    assert is_softmax_regression(linear, cross_entropy)
    assert is_softmax_regression(nn.Sequential(nn.Flatten(), linear), cross_entropy)
    frozen = nn.Linear(3, 2)
    frozen.bias.requires_grad_(False)
    for module, loss in (
        (linear, squared_error),
        (nn.Linear(3, 2, bias=False), cross_entropy),
        (frozen, cross_entropy),
        (nn.Sequential(linear, nn.Tanh()), cross_entropy),
        (nn.Sequential(nn.Linear(3, 3), linear), cross_entropy),
    ):
        assert not is_softmax_regression(module, loss)
