from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmeta.core import tree
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.objective import Objective
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.data import pack, unpacked
from fedmeta.engine.layout import predictor
from fedmeta.models import losses
from fedmeta.models.functional import FunctionalModel
from fedmeta.priors import fisher, fisher_contribution, path_importance, path_start, path_step
from problems import (
    LAYOUTS,
    PLAIN,
    classification,
    double,
    flat,
    mlp,
    regression,
)


def by_hand(model: FunctionalModel, loss: losses.Loss, samples: Samples) -> Tree:
    """Σ over samples of squared gradients, one backward pass each."""
    total = tree.zeros_like(model.theta)
    for i in range(len(samples.labels)):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in model.theta.items()}
        one = slice(i, i + 1)
        loss(model(leaves, samples.inputs[one]), samples.labels[one]).sum().backward()  # type: ignore[no-untyped-call]
        total = {name: leaf + leaves[name].grad.square() for name, leaf in total.items()}
    return total


PICTURES = classification(shape=(1, 4, 4))
CASES = {
    "classes": (classification(), double(mlp()), losses.cross_entropy),
    "values": (regression(), double(mlp(2, 3, 1)), losses.squared_error),
    "pictures": (
        PICTURES,
        double(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ELU(), nn.Flatten(), nn.Linear(8, 3))),
        losses.cross_entropy,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("path", ["batched-all", "loop"])
def test_fisher_is_the_mean_of_squared_gradients_over_all_nodes(name: str, path: str) -> None:
    federation, model, loss = CASES[name]
    objective = Objective(predictor(model, LAYOUTS[path]), loss)
    total, count, expected = (
        tree.zeros_like(model.theta),
        torch.tensor(0.0),
        tree.zeros_like(model.theta),
    )
    for node in federation.sources:
        support = unpacked(federation, node, PLAIN, torch.float64).support
        mine, number = fisher_contribution(objective, model.theta, support)
        assert list(mine) == list(model.theta)
        assert int(number) == len(node.support)
        total, count = tree.add(total, mine), count + number
        expected = tree.add(expected, by_hand(model, loss, support))
    diagonal = fisher(total, count)
    assert torch.allclose(flat(diagonal), flat(expected) / int(count), rtol=1e-10)
    assert float(flat(diagonal).max()) > 0


@pytest.mark.parametrize("name", CASES)
def test_many_nodes_at_once_and_padding_does_not_count(name: str) -> None:
    federation, model, loss = CASES[name]
    objective = Objective(predictor(model, LAYOUTS["batched-all"]), loss)
    data = pack(federation, federation.sources, PLAIN, torch.float64).support
    assert bool((data.mask == 0).any())
    trees, counts = torch.func.vmap(lambda s: fisher_contribution(objective, model.theta, s))(data)
    for i, node in enumerate(federation.sources):
        alone = unpacked(federation, node, PLAIN, torch.float64).support
        expected, count = fisher_contribution(objective, model.theta, alone)
        assert float(counts[i]) == float(count)
        for leaf, values in expected.items():
            assert torch.allclose(trees[leaf][i], values, rtol=1e-10)


def test_fisher_of_nothing() -> None:
    with pytest.raises(DataError, match="no samples"):
        fisher({"a": torch.zeros(1)}, torch.tensor(0.0))


def test_work_along_a_path_adds_up_to_the_fall_of_the_loss() -> None:
    """For small steps Σω = L(start) − L(end); a parameter that did nothing has no importance."""
    scale = torch.tensor([1.0, 4.0, 0.0]).double()
    theta = {"a": torch.tensor([1.0, -2.0, 3.0]).double()}
    path, start = path_start(theta), float((scale * theta["a"].square()).sum() / 2)
    for _ in range(2000):
        gradient = {"a": scale * theta["a"]}
        movement = tree.scale(-1e-3, gradient)
        path = path_step(path, gradient, movement)
        theta = tree.add(theta, movement)
    end = float((scale * theta["a"].square()).sum() / 2)
    assert float(path.work["a"].sum()) == pytest.approx(start - end, rel=1e-2)
    importance = path_importance(path, damping=1e-6)["a"]
    # Descended from x to 0, a curvature k did the work kx²/2 over x²: importance k/2.
    assert float(importance[1]) == pytest.approx(2.0, rel=1e-2)
    assert float(importance[2]) == 0
    assert float(importance[0]) > 0


def test_work_against_the_gradient_is_no_importance() -> None:
    up = {"a": torch.tensor([1.0])}
    assert float(path_importance(path_step(path_start(up), up, up))["a"]) == 0
    with pytest.raises(SettingError, match="damping is 0"):
        path_importance(path_start(up), damping=0.0)
