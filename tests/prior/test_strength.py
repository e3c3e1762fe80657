"""λ = "auto": the rule, where it has no answer, and what it does on two tasks of digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import SettingError
from fedmeta.core.user_code import load_object
from fedmeta.data import load
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.priors import SquaredEuclidean
from fedmeta.training.prior_strength import balanced
from fedmeta.training.train import with_strength
from prior.conftest import task_table, trained

EXAMPLE = Path(__file__).parents[2] / "examples" / "earlier_tasks.py"
ONE_BY_ONE = Execution(path="loop", chunk=1)


def test_the_pull_costs_what_the_new_task_gains(tasks: Path) -> None:
    free = trained(init="early").meta_model
    federation = load(RunSpec.from_dict(task_table("later")).data, 0)
    prior = SquaredEuclidean(1.0, load_theta("early"))
    found = balanced(prior, free, federation, ONE_BY_ONE, seed=0)
    distance = sum(float((leaf - prior.prior[n]).square().sum()) for n, leaf in free.theta.items())
    assert found.distance == pytest.approx(distance, rel=1e-5)

    def loss(model: MetaModel) -> float:
        total = weight = 0.0
        for node in federation.sources:
            names = [model.task.class_names[i] for i in federation.labels[node.support]]
            phi = model.adapt(federation.inputs[node.support], names)
            p = phi.predict(federation.inputs[node.query])
            labels = torch.tensor(federation.labels[node.query])
            total += node.size * float(-p[torch.arange(len(labels)), labels].log().mean())
            weight += node.size
        return total / weight

    gain = loss(replace(free, theta=prior.fitted(free.theta).prior)) - loss(free)
    assert found.gain == pytest.approx(gain, rel=1e-4)
    assert found.strength == pytest.approx(gain / distance, rel=1e-4)


def test_targets_are_not_touched(tasks: Path) -> None:
    """Other samples of the targets give the same λ."""
    settings = RunSpec.from_dict(task_table("later", init="early", prior={"model": "early"}))
    federation = load(settings.data_settings, 0)
    inputs = federation.inputs.copy()
    for node in federation.targets:
        inputs[node.support] = inputs[node.query] = 1e3
    changed = replace(federation, inputs=inputs)
    found = [with_strength(settings, each).prior.strength for each in (federation, changed)]
    assert found[0] == found[1]


def test_a_number_is_left_as_it_is(tasks: Path) -> None:
    settings = RunSpec.from_dict(
        task_table("later", init="early", prior={"model": "early", "strength": 0.25})
    )
    assert with_strength(settings, load(settings.data_settings, 0)) is settings


def test_where_there_is_nothing_to_balance(tasks: Path) -> None:
    plain = {"model": "early", "kind": "euclidean"}
    with pytest.raises(SettingError, match="does not leave the prior model"):
        trained(init="early", prior=plain, training={"rounds": 0})
    # A start that is worse on the new task than the prior model, and no time to get better.
    federation = load(RunSpec.from_dict(task_table("later")).data, 0)
    good = trained(init="early", training={"rounds": 30}).meta_model
    bad = replace(good, theta={name: 10 * leaf + 5 for name, leaf in good.theta.items()})
    with pytest.raises(SettingError, match=r"gains nothing.*PriorSettings\(strength"):
        balanced(SquaredEuclidean(1.0, good.theta), bad, federation, ONE_BY_ONE, seed=0)


@pytest.mark.slow
def test_digits_keep_the_earlier_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = "auto" against no prior: the new task within 5 points, and far less forgetting cost."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    both_tasks = load_object(f"{EXAMPLE}:both_tasks", "example")
    rows = both_tasks(seed=0)
    start, free = rows["the first model itself"], rows["none"]
    assert free[1] > start[1] + 0.1  # there is something to learn
    assert free[0] < start[0] - 0.03  # and something to lose
    for kind in ("euclidean", "fisher", "path"):
        tied = rows[kind]
        assert tied[1] > free[1] - 0.05
        assert tied[2] < 0.5 * free[2]  # the forgetting cost, of which the rule speaks
    # Of the accuracy the plain distance keeps half; what importance keeps differs between seeds.
    assert start[0] - rows["euclidean"][0] < 0.5 * (start[0] - free[0])
