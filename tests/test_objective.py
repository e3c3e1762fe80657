from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.meta_gradient import InverseSchedule, MetaGradient, meta_gradient
from fedmeta.core.objective import (
    Adaptation,
    Facts,
    Objective,
    Passes,
    adapt,
    local_descent,
)
from fedmeta.core.sample_sets import mini_batch, union
from fedmeta.data import NodeData, Samples
from fedmeta.engine.layout import predictor
from fedmeta.models.functional import FunctionalModel
from fedmeta.models.losses import cross_entropy
from fedmeta.models.networks import ModelSettings, build
from problems import LAYOUTS, double, flat, mlp

KEY = randomness.key(0)


def facts(round_number: float = 1.0, key: Tensor = KEY) -> Facts:
    number = torch.tensor(round_number, dtype=torch.float64)
    return Facts(torch.ones_like(number), torch.ones_like(number), number, torch.tensor(0), key)


def samples(count: int, shape: tuple[int, ...] = (3,), seed: int = 0, padding: int = 0) -> Samples:
    """Random samples of three classes; padding repeats the first one."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=draw, dtype=torch.float64)
    labels = torch.randint(3, (count,), generator=draw)
    rows = torch.cat([torch.arange(count), torch.zeros(padding, dtype=torch.int64)])
    mask = (torch.arange(count + padding) < count).double()
    return Samples(inputs[rows], labels[rows], mask)


def node(support: int = 5, query: int = 4, shape: tuple[int, ...] = (3,)) -> NodeData:
    return NodeData(samples(support, shape, 1), samples(query, shape, 2))


def unrolled(model: FunctionalModel, data: NodeData, adaptation: Adaptation) -> Tensor:
    """G by one autograd graph through the whole adaptation."""
    theta = {name: leaf.clone().requires_grad_() for name, leaf in model.theta.items()}
    phi, moves = theta, adaptation.moves(model.theta)
    for _ in range(adaptation.steps):
        loss = cross_entropy(model(phi, data.support.inputs), data.support.labels).mean()
        gradients = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        phi = {
            name: leaf - adaptation.step_size * g if name in moves else leaf
            for (name, leaf), g in zip(phi.items(), gradients, strict=True)
        }
    loss = cross_entropy(model(phi, data.query.inputs), data.query.labels).mean()
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(theta.values()))])


class TestByHand:
    """f(x) = θx with squared error on one sample each: everything is a number one can work out."""

    # L(θ, {(x, y)}) = (θx − y)²; support (2, 1), query (1, 3); θ = 1, α = 0.1
    data = NodeData(
        Samples(torch.tensor([[2.0]]), torch.tensor([[1.0]]), torch.ones(1)),
        Samples(torch.tensor([[1.0]]), torch.tensor([[3.0]]), torch.ones(1)),
    )
    theta = {"a": torch.tensor(1.0)}  # noqa: RUF012
    objective = Objective(
        lambda theta, x, _key: theta["a"] * x, lambda out, y: (out - y).square().sum(-1)
    )

    def test_gradient(self) -> None:
        gradient, value = self.objective.gradient(self.theta, self.data.support)
        assert (float(gradient["a"]), float(value)) == (4, 1)

    def test_adaptation(self) -> None:
        # φ = 1 − 0.1·4 = 0.6, then 0.6 − 0.1·2·2·(1.2 − 1) = 0.52
        for steps, phi in enumerate((1.0, 0.6, 0.52)):
            adapted = adapt(
                self.objective, Adaptation(0.1, steps=steps), self.theta, self.data.support
            )
            assert float(adapted["a"]) == pytest.approx(phi)

    @pytest.mark.parametrize("curvature", ["exact", "finite-difference", "none"])
    def test_meta_gradient(self, curvature: str) -> None:
        # r = 2(0.6 − 3) = −4.8, ∇²L = 8, G = (1 − 0.1·8)·r = −0.96; a quadratic has no
        # difference error
        rule = MetaGradient(Adaptation(0.1), curvature)
        gradient, loss = meta_gradient(self.objective, rule, self.theta, self.data, facts())
        assert float(loss) == pytest.approx(2.4**2)
        expected = -4.8 if curvature == "none" else -0.96
        assert float(gradient["a"]) == pytest.approx(expected, rel=1e-4)

    def test_two_steps(self) -> None:
        rule = MetaGradient(Adaptation(0.1, steps=2))
        gradient, loss = meta_gradient(self.objective, rule, self.theta, self.data, facts())
        assert float(loss) == pytest.approx(2.48**2)
        assert float(gradient["a"]) == pytest.approx(0.2**2 * 2 * (0.52 - 3))

    def test_no_step(self) -> None:
        rule = MetaGradient(Adaptation(0.1, steps=0))
        gradient, _ = meta_gradient(self.objective, rule, self.theta, self.data, facts())
        assert float(gradient["a"]) == pytest.approx(-4)


def test_padding_does_not_count() -> None:
    objective, theta = Objective(double(mlp()), cross_entropy), double(mlp()).theta
    bare, padded = (objective.gradient(theta, samples(4, padding=p)) for p in (0, 3))
    assert float((flat(bare[0]) - flat(padded[0])).abs().max()) < 1e-14
    assert float(bare[1]) == pytest.approx(float(padded[1]), abs=1e-14)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("scope", ["all", "head"])
def test_exact_is_autograd_through_the_adaptation(steps: int, scope: str) -> None:
    model, data, adaptation = double(mlp()), node(), Adaptation(0.3, steps, scope)
    objective = Objective(model, cross_entropy)
    got, _ = meta_gradient(objective, MetaGradient(adaptation), model.theta, data, facts())
    expected = unrolled(model, data, adaptation)
    assert float((flat(got) - expected).abs().max()) < 1e-12
    first_order, _ = meta_gradient(
        objective, MetaGradient(adaptation, "none"), model.theta, data, facts()
    )
    assert float((flat(first_order) - expected).abs().max()) > 1e-3, "curvature matters here"


@pytest.mark.parametrize("steps", [1, 2])
def test_difference_error_falls_with_the_square_of_delta(steps: int) -> None:
    model, data, adaptation = double(mlp()), node(), Adaptation(0.3, steps)
    objective = Objective(model, cross_entropy)
    exact = flat(meta_gradient(objective, MetaGradient(adaptation), model.theta, data, facts())[0])

    def error(delta: float) -> float:
        rule = MetaGradient(
            adaptation, "finite-difference", lambda _: torch.tensor(delta, dtype=torch.float64)
        )
        got = flat(meta_gradient(objective, rule, model.theta, data, facts())[0])
        return float((got - exact).abs().max())

    errors = [error(delta) for delta in (1e-1, 1e-2, 1e-3)]
    assert errors[0] > 1e-6
    for coarse, fine in pairwise(errors):
        assert 70 < coarse / fine < 140, errors


def test_none_is_the_query_gradient_at_the_adapted_point() -> None:
    model, data, adaptation = double(mlp()), node(), Adaptation(0.3, 2)
    objective = Objective(model, cross_entropy)
    got, loss = meta_gradient(
        objective, MetaGradient(adaptation, "none"), model.theta, data, facts()
    )
    phi = adapt(objective, adaptation, model.theta, data.support)
    r, value = objective.gradient(phi, data.query)
    assert torch.equal(flat(got), flat(r))
    assert float(loss) == float(value)


@pytest.mark.parametrize("curvature", ["exact", "finite-difference", "none"])
def test_convolutions_on_both_paths(curvature: str) -> None:
    settings = ModelSettings("cnn", channels=(2, 3), last_pooling="average")
    model = double(build(settings, (1, 6, 5), 3, seed=0))
    nodes = [node(3, 2, (1, 6, 5)), NodeData(samples(3, (1, 6, 5), 5), samples(2, (1, 6, 5), 6))]
    rule = MetaGradient(Adaptation(0.2, steps=2), curvature)

    def one(objective: Objective, data: NodeData) -> Tensor:
        return flat(meta_gradient(objective, rule, model.theta, data, facts())[0])

    alone = torch.stack([one(Objective(model, cross_entropy), data) for data in nodes])
    stacked = NodeData(
        *(
            Samples(*(torch.stack(leaves) for leaves in zip(*parts, strict=True)))
            for parts in zip(*nodes, strict=True)
        )
    )
    batched = Objective(predictor(model, LAYOUTS["batched-all"]), cross_entropy)
    together = torch.func.vmap(lambda data: one(batched, data))(stacked)
    assert float((alone - together).abs().max()) < 1e-12
    if curvature == "exact":
        expected = unrolled(model, nodes[0], rule.adaptation)
        assert float((alone[0] - expected).abs().max()) < 1e-12


def test_scopes() -> None:
    theta = double(mlp()).theta
    assert Adaptation(scope="all").moves(theta) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert Adaptation(scope="head").moves(theta) == {"2.weight", "2.bias"}
    assert Adaptation(scope=("0.*", "*.bias")).moves(theta) == {"0.weight", "0.bias", "2.bias"}
    with pytest.raises(SettingError, match=r"patterns that match one of 0.weight"):
        Adaptation(scope=("classifier.*",)).moves(theta)


def test_adaptation_moves_only_its_scope() -> None:
    model = double(mlp())
    objective = Objective(model, cross_entropy)
    phi = adapt(objective, Adaptation(0.5, 3, "head"), model.theta, samples(5))
    assert torch.equal(phi["0.weight"], model.theta["0.weight"])
    assert not torch.equal(phi["2.weight"], model.theta["2.weight"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": float("nan")}, "step_size"),
        ({"steps": -1}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"scope": "tail"}, "scope"),
        ({"scope": ()}, "scope"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        Adaptation(**arguments)
    with pytest.raises(SettingError, match="did you mean 'exact'"):
        MetaGradient(Adaptation(), "exakt")
    with pytest.raises(SettingError, match=r"difference\.offset"):
        InverseSchedule(offset=0)


def test_schedule_and_cost() -> None:
    assert float(InverseSchedule()(facts(10))) == pytest.approx(1 / 200)
    assert float(InverseSchedule(1, 3, power=2)(facts(2))) == pytest.approx(1 / 25)
    assert MetaGradient(Adaptation(steps=2)).passes == Passes(6, 1)
    assert MetaGradient(Adaptation(steps=2), "none").passes == Passes(2, 1)


class TestMiniBatches:
    def test_real_samples_first_and_each_once(self) -> None:
        padded = samples(5, padding=4)
        padded.inputs[:] = torch.arange(9.0)[:, None]
        for step in range(30):
            batch = mini_batch(padded, 3, KEY, step)
            rows = batch.inputs[:, 0].tolist()
            assert batch.mask.tolist() == [1, 1, 1]
            assert len(set(rows)) == 3
            assert max(rows) < 5

    def test_padding_only_where_real_ones_run_out(self) -> None:
        padded = samples(5, padding=4)
        padded.inputs[:] = torch.arange(9.0)[:, None]
        batch = mini_batch(padded, 7, KEY, 0)
        assert batch.inputs[:5, 0].tolist() == [0, 1, 2, 3, 4]
        assert batch.mask.tolist() == [1] * 5 + [0] * 2

    def test_draws_do_not_see_the_padding(self) -> None:
        for step in range(10):
            bare, padded = (mini_batch(samples(6, padding=p), 4, KEY, step) for p in (0, 5))
            assert all(torch.equal(a, b) for a, b in zip(bare, padded, strict=True))

    def test_steps_and_keys_differ(self) -> None:
        draws = {
            tuple(mini_batch(samples(8), 4, key, step).inputs[:, 0].tolist())
            for key in (KEY, randomness.key(1))
            for step in range(6)
        }
        assert len(draws) > 8

    def test_every_sample_has_its_turn_equally_often(self) -> None:
        counted = torch.zeros(6)
        data = samples(6)
        data.inputs[:] = torch.arange(6.0)[:, None]
        for step in range(600):
            counted[mini_batch(data, 2, KEY, step).inputs[:, 0].long()] += 1
        assert float((counted / 600 - 1 / 3).abs().max()) < 0.08

    def test_full_batches_when_there_is_nothing_to_draw(self) -> None:
        data = samples(4)
        assert mini_batch(data, None, KEY, 0) is data
        assert mini_batch(data, 4, None, 0) is data

    def test_a_key_is_needed(self) -> None:
        with pytest.raises(SettingError, match="without a random key"):
            mini_batch(samples(4), 2, None, 0)

    def test_adaptation_in_stretches_is_adaptation_in_one_piece(self) -> None:
        model = double(mlp())
        objective, rule = Objective(model, cross_entropy), Adaptation(0.3, 5, batch_size=2)
        whole = adapt(objective, rule, model.theta, samples(6), KEY)
        part = adapt(objective, replace(rule, steps=2), model.theta, samples(6), KEY)
        part = adapt(objective, replace(rule, steps=3), part, samples(6), KEY, first_step=2)
        assert torch.equal(flat(whole), flat(part))
        again = adapt(objective, replace(rule, steps=3), part, samples(6), KEY)
        assert not torch.equal(flat(whole), flat(again))

    def test_meta_gradient_adapts_on_the_same_batches(self) -> None:
        model, data = double(mlp()), node()
        rule = MetaGradient(Adaptation(0.3, 3, batch_size=2), "none")
        objective = Objective(model, cross_entropy)
        got, _ = meta_gradient(objective, rule, model.theta, data, facts())
        phi = adapt(objective, rule.adaptation, model.theta, data.support, KEY)
        assert torch.equal(flat(got), flat(objective.gradient(phi, data.query)[0]))

    def test_local_descent_without_padding_is_that_with(self) -> None:
        model = double(mlp())
        objective = Objective(model, cross_entropy)
        bare, padded = (
            NodeData(samples(4, seed=1, padding=p), samples(5, seed=2, padding=p)) for p in (0, 3)
        )
        for batch_size in (None, 3, 8, 10):
            ends = [
                flat(local_descent(objective, model.theta, data, 4, 0.3, batch_size, KEY)[0])
                for data in (bare, padded)
            ]
            assert float((ends[0] - ends[1]).abs().max()) < 1e-13, batch_size


def test_union_has_all_real_samples_first() -> None:
    data = NodeData(samples(2, seed=1, padding=2), samples(3, seed=2, padding=1))
    joined = union(data)
    assert joined.mask.tolist() == [1] * 5 + [0] * 3
    assert torch.equal(joined.inputs[:2], data.support.inputs[:2])
    assert torch.equal(joined.inputs[2:5], data.query.inputs[:3])
    assert torch.equal(joined.labels[2:5], data.query.labels[:3])


def test_local_descent_by_hand() -> None:
    theta = {"a": torch.tensor(1.0)}
    objective = Objective(
        lambda theta, x, _key: theta["a"] * x, lambda out, y: (out - y).square().sum(-1)
    )
    # mean of (2a − 1)² and (a − 3)²: 3.5... gradient (4(2a − 1) + 2(a − 3))/2 = 5a − 5 = 0 at 1
    end, first = local_descent(objective, theta, TestByHand.data, 2, 0.1, None, KEY)
    assert float(first) == pytest.approx((1 + 4) / 2)
    assert float(end["a"]) == pytest.approx(1.0)
    start = {"a": torch.tensor(2.0)}
    end, _ = local_descent(objective, start, TestByHand.data, 2, 0.1, None, KEY)
    assert float(end["a"]) == pytest.approx(1.25)  # 2 → 1.5 → 1.25


def test_meta_gradient_keeps_names_and_order() -> None:
    model = double(nn.Sequential(nn.Linear(3, 3)))
    got, _ = meta_gradient(
        Objective(model, cross_entropy),
        MetaGradient(Adaptation()),
        model.theta,
        node(),
        facts(),
    )
    assert list(got) == list(model.theta)
    assert tree.size(got) == 12
