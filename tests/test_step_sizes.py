"""Learned inner step sizes in the mathematics of one node: s beside θ, and its gradient."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective, adapt
from fedmeta.core.serialization import deserialize, serialize
from fedmeta.core.tree import Tree
from fedmeta.data import NodeData, Samples
from fedmeta.engine.layout import predictor
from fedmeta.models.functional import FunctionalModel
from fedmeta.models.losses import cross_entropy
from fedmeta.models.networks import ModelSettings, build
from problems import LAYOUTS, double, flat, mlp

MODEL = double(mlp())
OBJECTIVE = Objective(MODEL, cross_entropy)
LEARNED = ("tensor", "parameter")


def samples(count: int, seed: int, shape: tuple[int, ...] = (3,)) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=draw, dtype=torch.float64)
    return Samples(
        inputs, torch.randint(3, (count,), generator=draw), torch.ones(count, dtype=torch.float64)
    )


DATA = NodeData(samples(5, 1), samples(4, 2))


def facts() -> Facts:
    one = torch.tensor(1.0, dtype=torch.float64)
    return Facts(one, one, one, torch.tensor(0), randomness.key(0))


def joint_tree(adaptation: Adaptation, model: FunctionalModel = MODEL, seed: int = 0) -> Tree:
    """θ and random s."""
    draw = torch.Generator().manual_seed(seed)
    steps = {
        name: torch.randn(leaf.shape, generator=draw, dtype=leaf.dtype)
        for name, leaf in step_sizes.start(adaptation, model.theta).items()
    }
    return {**model.theta, **steps}


def unrolled(
    joint: Tree,
    adaptation: Adaptation,
    model: FunctionalModel = MODEL,
    data: NodeData = DATA,
) -> tuple[Tree, Tree]:
    """φ, and the gradient in θ and s by one autograd graph through the whole adaptation."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in joint.items()}
    start = {name: leaf for name, leaf in leaves.items() if not name.startswith("step:")}
    phi = start
    for _ in range(adaptation.steps):
        loss = cross_entropy(model(phi, data.support.inputs), data.support.labels).mean()
        gradients = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        moved = {}
        for (name, leaf), g in zip(phi.items(), gradients, strict=True):
            s = leaves.get(f"step:{name}")
            size = (
                None
                if s is None
                else adaptation.step_size * torch.exp(adaptation.learning_scale * s)
            )
            moved[name] = leaf if size is None else leaf - size * g
        phi = moved
    loss = cross_entropy(model(phi, data.query.inputs), data.query.labels).mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    phi = {name: leaf.detach() for name, leaf in phi.items()}
    return phi, dict(zip(leaves, gradients, strict=True))


def far(a: Tree, b: Tree) -> float:
    assert list(a) == list(b)
    return float((flat(a) - flat(b)).abs().max())


class TestGradients:
    @pytest.mark.parametrize("scale", [1.0, 2.5])
    @pytest.mark.parametrize("scope", ["all", "head"])
    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("learned", LEARNED)
    def test_exact_is_autograd_through_the_adaptation(
        self, learned: Any, steps: int, scope: str, scale: float
    ) -> None:
        rule = Adaptation(0.3, steps, scope, learned=learned, learning_scale=scale)
        joint = joint_tree(rule)
        got, _ = meta_gradient(OBJECTIVE, MetaGradient(rule), joint, DATA, facts())
        _, expected = unrolled(joint, rule)
        assert far(got, expected) < 1e-12
        parts = step_sizes.split(got)
        assert all(float(flat(part).abs().max()) > 1e-3 for part in parts), "both matter here"

    @pytest.mark.parametrize("learned", LEARNED)
    def test_difference_error_falls_with_the_square_of_delta(self, learned: Any) -> None:
        rule = Adaptation(0.3, 3, learned=learned)
        joint = joint_tree(rule)
        _, expected = unrolled(joint, rule)

        def error(delta: float) -> float:
            way = MetaGradient(
                rule, "finite-difference", lambda _: torch.tensor(delta, dtype=torch.float64)
            )
            return far(meta_gradient(OBJECTIVE, way, joint, DATA, facts())[0], expected)

        errors = [error(delta) for delta in (1e-1, 1e-2, 1e-3)]
        assert errors[0] > 1e-6
        for coarse, fine in pairwise(errors):
            assert 60 < coarse / fine < 160, errors

    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("learned", LEARNED)
    def test_none_takes_the_query_gradient_for_every_step(self, learned: Any, steps: int) -> None:
        rule = Adaptation(0.3, steps, learned=learned, learning_scale=2.0)
        joint = joint_tree(rule)
        got, _ = meta_gradient(OBJECTIVE, MetaGradient(rule, "none"), joint, DATA, facts())
        theta, s = step_sizes.split(joint)
        sizes = {name: 0.3 * torch.exp(2 * s[f"step:{name}"]) for name in theta}
        points = [theta]
        for _ in range(steps):
            g, _ = OBJECTIVE.gradient(points[-1], DATA.support)
            points.append({n: leaf - sizes[n] * g[n] for n, leaf in points[-1].items()})
        r, _ = OBJECTIVE.gradient(points[-1], DATA.query)
        expected = dict(r)
        for name in theta:
            gradients = [OBJECTIVE.gradient(point, DATA.support)[0] for point in points[:-1]]
            slope = -2 * sizes[name] * torch.stack([g[name] for g in gradients]).sum(0) * r[name]
            expected[f"step:{name}"] = slope.sum() if learned == "tensor" else slope
        assert far(got, expected) < 1e-14
        if steps == 1:  # with one step there is no curvature in G_s
            _, exact = unrolled(joint, rule)
            assert far(step_sizes.split(got)[1], step_sizes.split(exact)[1]) < 1e-12

    def test_by_hand(self) -> None:
        # f(x) = θx, L = (θx − y)²; support (2, 1), query (1, 3); θ = 1, α = 0.1, a = 0.1·e^s
        # at e^s = 2: g = 4, φ = 1 − 0.2·4 = 0.2, r = 2(0.2 − 3) = −5.6
        # G_θ = (1 − 0.2·8) r = 3.36, G_s = −0.2·4·r = 4.48
        objective = Objective(
            lambda theta, x, _key: theta["a"] * x, lambda out, y: (out - y).square().sum(-1)
        )
        data = NodeData(
            *(
                Samples(torch.tensor([[x]]), torch.tensor([[y]]), torch.ones(1))
                for x, y in ((2.0, 1.0), (1.0, 3.0))
            )
        )
        joint = {"a": torch.tensor(1.0), "step:a": torch.tensor(2.0).log()}
        rule = MetaGradient(Adaptation(0.1, learned="tensor"))
        got, loss = meta_gradient(objective, rule, joint, data, facts())
        assert float(loss) == pytest.approx(2.8**2)
        assert (float(got["a"]), float(got["step:a"])) == pytest.approx((3.36, 4.48))

    @pytest.mark.parametrize("curvature", ["exact", "finite-difference", "none"])
    @pytest.mark.parametrize("learned", LEARNED)
    def test_at_zero_it_is_the_plain_one_bit_for_bit(self, learned: Any, curvature: Any) -> None:
        plain = Adaptation(0.3, 2, "head")
        rule = replace(plain, learned=learned)
        joint = {**MODEL.theta, **step_sizes.start(rule, MODEL.theta)}
        got, loss = meta_gradient(OBJECTIVE, MetaGradient(rule, curvature), joint, DATA, facts())
        expected, value = meta_gradient(
            OBJECTIVE, MetaGradient(plain, curvature), MODEL.theta, DATA, facts()
        )
        assert list(expected) == list(MODEL.theta)
        assert torch.equal(flat(step_sizes.split(got)[0]), flat(expected))
        assert torch.equal(loss, value)

    def test_without_steps_there_is_nothing_to_learn(self) -> None:
        rule = Adaptation(0.3, 0, learned="parameter")
        got, _ = meta_gradient(OBJECTIVE, MetaGradient(rule), joint_tree(rule), DATA, facts())
        assert float(flat(step_sizes.split(got)[1]).abs().max()) == 0

    @pytest.mark.parametrize("learned", LEARNED)
    def test_convolutions_on_both_paths(self, learned: Any) -> None:
        shape = (1, 6, 5)
        settings = ModelSettings("cnn", channels=(2, 3), last_pooling="average")
        model = double(build(settings, shape, 3, seed=0))
        nodes = [NodeData(samples(3, i, shape), samples(2, i + 10, shape)) for i in (1, 2)]
        rule = Adaptation(0.2, 2, learned=learned)
        joint = joint_tree(rule, model)

        def one(objective: Objective, data: NodeData) -> Tensor:
            return flat(meta_gradient(objective, MetaGradient(rule), joint, data, facts())[0])

        alone = torch.stack([one(Objective(model, cross_entropy), data) for data in nodes])
        stacked = tree.map_leaves(lambda *leaves: torch.stack(leaves), *nodes)
        batched = Objective(predictor(model, LAYOUTS["batched-all"]), cross_entropy)
        together = torch.func.vmap(lambda data: one(batched, data))(stacked)
        assert float((alone - together).abs().max()) < 1e-12
        _, expected = unrolled(joint, rule, model, nodes[0])
        assert float((alone[0] - flat(expected)).abs().max()) < 1e-12


class TestAdaptation:
    @pytest.mark.parametrize("scope", ["all", "head"])
    @pytest.mark.parametrize("learned", LEARNED)
    def test_adapts_by_its_factors(self, learned: Any, scope: str) -> None:
        rule = Adaptation(0.3, 3, scope, learned=learned, learning_scale=0.5)
        joint = joint_tree(rule)
        factors = step_sizes.factors(rule, step_sizes.split(joint)[1])
        phi = adapt(OBJECTIVE, replace(rule, factors=factors), MODEL.theta, DATA.support)
        assert far(phi, unrolled(joint, rule)[0]) < 1e-14
        fixed = MetaGradient(replace(rule, learned="none", factors=factors))
        got, _ = meta_gradient(OBJECTIVE, fixed, MODEL.theta, DATA, facts())
        assert far(got, step_sizes.split(unrolled(joint, rule)[1])[0]) < 1e-12

    def test_factors_of_one_are_none(self) -> None:
        rule = Adaptation(0.3, 2)
        ones = {name: torch.ones(()) for name in MODEL.theta}  # float32: taken in θ's dtype
        plain, given = (
            adapt(OBJECTIVE, each, MODEL.theta, DATA.support)
            for each in (rule, replace(rule, factors=ones))
        )
        assert torch.equal(flat(plain), flat(given))
        assert given["0.weight"].dtype == torch.float64

    @pytest.mark.parametrize(
        ("factors", "message"),
        [
            ({"2.weight": torch.ones(())}, r"none for '2\.bias'"),
            ({}, r"none for '2\.bias'"),
            (
                {n: torch.ones(()) for n in ("2.weight", "2.bias", "0.bias")},
                r"for '0\.bias', which adaptation does not move",
            ),
            (
                {"2.weight": torch.ones(()), "2.bias": torch.ones(()), "3.bias": torch.ones(())},
                r"for '3\.bias', which adaptation does not move",
            ),
            (
                {"2.weight": torch.ones(3), "2.bias": torch.ones(3)},
                r"'2\.weight' have shape \(3,\): give one number or shape \(3, 3\)",
            ),
        ],
    )
    def test_factors_of_another_model_are_refused(
        self, factors: dict[str, Tensor], message: str
    ) -> None:
        rule = Adaptation(scope="head", factors=factors)
        with pytest.raises(SettingError, match=message):
            adapt(OBJECTIVE, rule, MODEL.theta, DATA.support)
        with pytest.raises(SettingError, match=message):
            rule.fitted(MODEL.theta)

    def test_step_sizes_of_another_model_are_refused(self) -> None:
        rule = MetaGradient(Adaptation(learned="tensor"))
        joint = {**MODEL.theta, "step:9.weight": torch.tensor(0.0)}
        with pytest.raises(SettingError, match=r"none for '0\.bias'"):
            meta_gradient(OBJECTIVE, rule, joint, DATA, facts())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"learned": "tensors"}, "learned is 'tensors': did you mean 'tensor'"),
            ({"learned": True}, "learned is True"),
            ({"learning_scale": 0.0}, "learning_scale"),
            ({"learning_scale": -1.0}, "learning_scale"),
            ({"learning_scale": float("nan")}, "learning_scale"),
        ],
    )
    def test_nonsense_is_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingError, match=message):
            Adaptation(**arguments)

    def test_factors_are_no_setting(self) -> None:
        rule = Adaptation(learned="tensor")
        given = replace(rule, factors={"a": torch.ones(3)})
        assert rule == given
        assert hash(rule) == hash(given)
        assert repr(rule) == repr(given)
        table = serialize(given)
        assert table == serialize(rule)
        assert (table["learned"], table["learning_scale"]) == ("tensor", 1.0)
        assert "factors" not in table
        assert deserialize(Adaptation, table, "inner") == rule
        with pytest.raises(SettingError, match="inner has no setting 'factors'"):
            deserialize(Adaptation, {"factors": {}}, "inner")
        with pytest.raises(SettingError, match=r"inner\.learned is 'layer'"):
            deserialize(Adaptation, {"learned": "layer"}, "inner")


class TestTrees:
    def test_names_and_shapes(self) -> None:
        theta = MODEL.theta
        assert step_sizes.start(Adaptation(), theta) == {}
        whole = step_sizes.start(Adaptation(learned="tensor"), theta)
        assert list(whole) == [f"step:{name}" for name in theta]
        assert all(leaf.shape == () and leaf.dtype == torch.float64 for leaf in whole.values())
        each = step_sizes.start(Adaptation(learned="parameter", scope="head"), theta)
        shapes = {name: tuple(leaf.shape) for name, leaf in each.items()}
        assert shapes == {"step:2.weight": (3, 3), "step:2.bias": (3,)}

    def test_split_is_the_inverse_of_joining(self) -> None:
        joint = joint_tree(Adaptation(learned="parameter"))
        theta, steps = step_sizes.split(joint)
        assert list(theta) == list(MODEL.theta)
        assert {**theta, **steps} == joint

    def test_factors(self) -> None:
        steps = {"step:a": torch.tensor([0.0, 1.0])}
        found = step_sizes.factors(Adaptation(learned="parameter", learning_scale=2.0), steps)
        assert found["a"].tolist() == pytest.approx([1.0, 7.389056])

    def test_fitted_fills_in_what_is_not_learned_yet(self) -> None:
        assert Adaptation().fitted(MODEL.theta).factors is None
        fitted = Adaptation(scope="head", learned="parameter").fitted(MODEL.theta).factors
        assert fitted is not None
        assert set(fitted) == {"2.weight", "2.bias"}
        assert all(torch.equal(leaf, torch.ones_like(leaf)) for leaf in fitted.values())
