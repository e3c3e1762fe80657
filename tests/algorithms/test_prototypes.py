"""Heads of class means, against arithmetic by hand and against the slow twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedmeta_edge
from fedmeta.algorithms import ADMMFedMeta, Algorithm, Prototypes
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import PROTOTYPES, Adaptation, Facts, Objective, adapt
from fedmeta.core.prototypes import Head, check_linear, linear_head, with_prototypes
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import Tree
from fedmeta.data import Node, unpacked
from fedmeta.engine.layout import Layout, predictor
from fedmeta.evaluation.evaluate import evaluate
from fedmeta.evaluation.targets import Targets, TargetStore
from fedmeta.export import export_onnx
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.training.train import train
from oracle import prototypes as twin
from problems import (
    DOUBLE,
    LAYOUTS,
    PLAIN,
    classification,
    double,
    engine_for,
    flat,
    mlp,
    regression,
    trace,
    unflat,
)

CLASSES = 4  # one of them is on no node that has few samples
DATA = classification(classes=CLASSES)
MODULE = mlp(hidden=5, outputs=CLASSES)
MODEL = double(MODULE)
HEAD = Head("2.weight", "2.bias")
OBJECTIVE = Objective(MODEL, cross_entropy)
KEPT = Adaptation(3.0, scope="head", method="head+prototypes")
ADDED = ADMMFedMeta(KEPT, penalty=0.5)
ONE = torch.ones((), dtype=torch.float64)
FACTS = Facts(ONE, ONE, ONE, ONE, torch.tensor(7))


def samples(inputs: list[list[float]], labels: list[int]) -> Samples:
    rows = torch.tensor(inputs, dtype=torch.float64)
    return Samples(rows, torch.tensor(labels), torch.ones(len(labels), dtype=torch.float64))


def features(theta: Tensor, x: Tensor) -> Tensor:
    """What comes before the head, a function of the parameters before it."""
    before = nn.Sequential(*list(MODULE)[:2])
    like = {name: leaf.detach() for name, leaf in before.named_parameters()}
    found: Tensor = functional_call(before, unflat(theta, like), (x,))
    return found


BODY = flat({name: leaf for name, leaf in MODEL.theta.items() if name not in HEAD})


def linear(theta: Tree, inputs: Tensor, key: Tensor | None) -> Tensor:
    return inputs @ theta["weight"].T + theta["bias"]


def test_means_by_hand() -> None:
    # μ_0 = (0, 1), μ_2 = (4, 1), m = (2, 1), D² = 16, τ = 8/16 = 1/2, mean ‖μ_c − m‖² = 4.
    # W_0 = 2τ(μ_0 − m) = (−2, 0), b_0 = τ(5 − 1) = 2; W_2 = (2, 0), b_2 = τ(5 − 17) = −6.
    support = samples([[0, 0], [0, 2], [4, 1]], [0, 0, 2])
    theta = {"weight": torch.randn(3, 2).double(), "bias": torch.randn(3).double()}
    phi = with_prototypes(linear, theta, Head("weight", "bias"), support, 8.0)
    assert phi["weight"].tolist() == [[-2, 0], [0, 0], [2, 0]]
    assert phi["bias"].tolist() == [2, -0.5 * 4 - 20, -6]


def test_means_are_added_to_a_head_that_is_kept() -> None:
    # As above with the learned head on top; the class without samples is out, too.
    support = samples([[0, 0], [0, 2], [4, 1]], [0, 0, 2])
    theta = {
        "weight": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).double(),
        "bias": torch.tensor([10.0, 20.0, 30.0]).double(),
    }
    phi = with_prototypes(linear, theta, Head("weight", "bias"), support, 8.0, kept=True)
    assert phi["weight"].tolist() == [[1 - 2, 2], [3, 4], [5 + 2, 6]]
    assert phi["bias"].tolist() == [10 + 2, 20 - 0.5 * 4 - 20, 30 - 6]


def test_scale_of_the_features_changes_nothing() -> None:
    theta = {"weight": torch.zeros(3, 2).double(), "bias": torch.zeros(3).double()}
    rows, labels = [[0.0, 1.0], [1.0, 3.0], [-1.0, 2.0], [5.0, 5.0]], [0, 1, 2, 1]
    answers = []
    for scale in (1.0, 1e-3, 1e4):
        scaled = samples([[scale * x for x in row] for row in rows], labels)
        phi = with_prototypes(linear, theta, Head("weight", "bias"), scaled, 3.0)
        answers.append(linear(phi, scaled.inputs, None))
    assert torch.allclose(answers[0], answers[1], atol=1e-9)
    assert torch.allclose(answers[0], answers[2], atol=1e-9)


@pytest.mark.parametrize("same", [1, 3])
def test_one_class_is_always_the_answer(same: int) -> None:
    support = samples([[1.0, 2.0, 3.0]] * same, [2] * same)
    phi = adapt(OBJECTIVE, PROTOTYPES, MODEL.theta, support)
    outputs = MODEL(phi, 100 * torch.randn(50, 3).double())
    assert outputs.isfinite().all()
    assert (outputs.argmax(dim=1) == 2).all()
    best = outputs.max(dim=1).values.unsqueeze(1)
    assert ((best - outputs)[:, [0, 1, 3]] >= 20).all()


def test_classes_without_samples_are_never_the_answer() -> None:
    support = samples(torch.randn(6, 3).tolist(), [0, 1, 3, 3, 1, 0])
    phi = adapt(OBJECTIVE, PROTOTYPES, MODEL.theta, support)
    outputs = MODEL(phi, 100 * torch.randn(500, 3).double())
    lead = outputs[:, [0, 1, 3]].max(dim=1).values - outputs[:, 2]
    assert (lead >= 20 - 1e-9).all()


@pytest.mark.parametrize("node", DATA.nodes, ids=lambda node: str(node.name))
def test_outputs_are_those_of_the_twin(node: Node) -> None:
    data = unpacked(DATA, node, PLAIN, torch.float64)
    phi = adapt(OBJECTIVE, PROTOTYPES, MODEL.theta, data.support)
    means = twin.class_means(features(BODY, data.support.inputs), data.support.labels)
    wanted = twin.logits(features(BODY, data.query.inputs), means, CLASSES, 4.0)
    assert torch.allclose(MODEL(phi, data.query.inputs), wanted, atol=1e-11, rtol=0)


@pytest.mark.parametrize("sharpness", [1.0, 8.0])
@pytest.mark.parametrize("node", DATA.sources, ids=lambda node: str(node.name))
def test_contributions_are_those_of_the_twin(node: Node, sharpness: float) -> None:
    data = unpacked(DATA, node, PLAIN, torch.float64)
    rule = Prototypes(replace(PROTOTYPES, step_size=sharpness))
    facts = FACTS._replace(weight=0.25 * ONE)
    got, _ = rule.node_step(OBJECTIVE, MODEL.theta, {}, data, facts)
    sets = data.support[:2], data.query[:2]
    wanted, value = twin.query_gradient(BODY, features, *sets, CLASSES, sharpness)
    body = flat({name: leaf for name, leaf in got.update.items() if name not in HEAD})
    assert torch.allclose(body, -0.25 * wanted, atol=1e-11, rtol=0)
    assert float(got.metrics["meta_loss"]) == pytest.approx(0.25 * value, abs=1e-11)
    assert all((got.update[name] == 0).all() for name in HEAD)
    assert body.abs().max() > 1e-4 or len(set(data.support.labels.tolist())) == 1


@pytest.mark.parametrize("node", DATA.nodes, ids=lambda node: str(node.name))
def test_a_kept_head_answers_too(node: Node) -> None:
    data = unpacked(DATA, node, PLAIN, torch.float64)
    phi = adapt(OBJECTIVE, KEPT, MODEL.theta, data.support)
    means = twin.class_means(features(BODY, data.support.inputs), data.support.labels)
    added = twin.logits(features(BODY, data.query.inputs), means, CLASSES, 3.0)
    learned = MODEL(MODEL.theta, data.query.inputs)
    assert torch.allclose(MODEL(phi, data.query.inputs), learned + added, atol=1e-11, rtol=0)


def test_a_kept_head_learns() -> None:
    """G is that of the whole: by the body through the means, by the head as of any last layer."""
    data = unpacked(DATA, DATA.sources[0], PLAIN, torch.float64)
    rule = MetaGradient(KEPT)
    found, _ = meta_gradient(OBJECTIVE, rule, MODEL.theta, data, FACTS)
    phi = adapt(OBJECTIVE, KEPT, MODEL.theta, data.support)
    at_phi, _ = OBJECTIVE.gradient(phi, data.query)
    for name in HEAD:
        assert torch.allclose(found[name], at_phi[name], atol=1e-12, rtol=0)
    name, step = "0.weight", 1e-6
    turned = torch.zeros_like(MODEL.theta[name])
    turned[1, 2] = step
    ends = []
    for sign in (1, -1):
        theta = {**MODEL.theta, name: MODEL.theta[name] + sign * turned}
        ends.append(OBJECTIVE.value(adapt(OBJECTIVE, KEPT, theta, data.support), data.query))
    slope = float(ends[0] - ends[1]) / (2 * step)
    assert float(found[name][1, 2]) == pytest.approx(slope, abs=1e-7)


def test_a_node_holds_nothing_against_classes_it_lacks() -> None:
    rows = [unpacked(DATA, node, PLAIN, torch.float64) for node in DATA.sources]
    held = [{*row.support.labels.tolist(), *row.query.labels.tolist()} for row in rows]
    place = next(i for i, classes in enumerate(held) if len(classes) < CLASSES)
    absent = sorted({*range(CLASSES)} - held[place])
    found, _ = meta_gradient(OBJECTIVE, MetaGradient(KEPT), MODEL.theta, rows[place], FACTS)
    plain, _ = OBJECTIVE.gradient(MODEL.theta, rows[place].query)
    assert found[HEAD.bias][absent].abs().max() < 1e-6
    assert plain[HEAD.bias][absent].min() > 0.01, "a head without means is pushed down there"


def test_who_is_adapted_again_takes_class_means_alone() -> None:
    settings = TrainingSettings(rounds=1, evaluate_every=0)
    model = train(DATA, ModelSettings("mlp", hidden=(4,)), ADDED, settings).meta_model
    first, second = (
        (DATA.inputs[node.query], [DATA.task.class_names[c] for c in DATA.labels[node.query]])
        for node in DATA.targets[:2]
    )
    again = model.adapt(*first).adapt(*second)
    alone = replace(model, adaptation=replace(KEPT, method="prototypes")).adapt(*second)
    for name, leaf in alone.theta.items():
        assert torch.allclose(again.theta[name], leaf, atol=1e-5)
    assert model.adapt(*first, steps=0).adaptation.keeps_head, "nothing was added"


@pytest.mark.parametrize("rule", [Prototypes(resplit="classes"), ADDED], ids=["made", "added"])
@pytest.mark.parametrize("layout", ["batched-1", "batched-3", "loop"])
def test_layouts_agree(layout: str, rule: Algorithm) -> None:
    runs = [
        trace(engine_for(rule, DATA, MODEL, LAYOUTS[name]), MODEL, 3)
        for name in (layout, "batched-all")
    ]
    for a, b in zip(*(run.theta for run in runs), strict=True):
        assert torch.allclose(a, b, atol=1e-11, rtol=0)
    assert (runs[0].theta[-1] - flat(MODEL.theta)).abs().max() > 1e-3


def test_padding_changes_nothing() -> None:
    data = unpacked(DATA, DATA.sources[0], PLAIN, torch.float64)

    def padded(part: Samples) -> Samples:
        more = part.inputs.new_full((3, 3), 50.0)
        return Samples(
            torch.cat([part.inputs, more]),
            torch.cat([part.labels, torch.tensor([2, 2, 0])]),
            torch.cat([part.mask, part.mask.new_zeros(3)]),
        )

    rule = Prototypes()
    plain, _ = rule.node_step(OBJECTIVE, MODEL.theta, {}, data, FACTS)
    longer = NodeData(padded(data.support), padded(data.query))
    other, _ = rule.node_step(OBJECTIVE, MODEL.theta, {}, longer, FACTS)
    assert torch.allclose(flat(plain.update), flat(other.update), atol=1e-12, rtol=0)


@pytest.mark.parametrize("rule", [PROTOTYPES, KEPT], ids=["made", "added"])
def test_steps_beyond_the_first_change_nothing_and_none_leaves_the_model(rule: Adaptation) -> None:
    store = TargetStore([Targets(DATA, DATA.targets, PLAIN, 0)], LAYOUTS["batched-all"])
    layout = Layout(
        LAYOUTS["batched-all"],
        Objective(predictor(MODEL, LAYOUTS["batched-all"]), cross_entropy),
    )
    (found,) = evaluate(layout, [(MODEL.theta, rule)], (0, 1, 5), store)
    assert found.losses[1] == pytest.approx(found.losses[5], abs=1e-10)
    node = unpacked(DATA, DATA.targets[0], PLAIN, torch.float64)
    assert found.losses[0][0] == pytest.approx(float(OBJECTIVE.value(MODEL.theta, node.query)))
    assert found.losses[0] != pytest.approx(found.losses[1], abs=1e-3)


def test_any_meta_learner_takes_them() -> None:
    fleet = engine_for(ADMMFedMeta(PROTOTYPES, 1.0, resplit="none"), DATA, MODEL)
    run = trace(fleet, MODEL, 3)
    losses = [float(each["meta_loss"]) for each in run.metrics]
    assert losses[2] < losses[0]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)), "2.weight 2 × 4"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), "1.weight 4, 1.bias 4"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), "0.weight 2 × 1 × 3 × 3"),
    ],
)
def test_heads_that_are_no_linear_layer_are_named(module: nn.Module, says: str) -> None:
    theta = double(module).theta
    with pytest.raises(ModelError, match=says):
        linear_head(theta, PROTOTYPES.moves(theta))


@pytest.mark.parametrize("last", [nn.Softmax(dim=1), nn.LayerNorm(4, elementwise_affine=False)])
def test_what_follows_the_head_is_noticed(last: nn.Module) -> None:
    model = double(nn.Sequential(*mlp(outputs=4), last))
    inputs = torch.randn(3, 3).double()
    with pytest.raises(ModelError, match="something follows"):
        check_linear(model, model.theta, HEAD, inputs)
    check_linear(MODEL, MODEL.theta, HEAD, inputs)
    with pytest.raises(ModelError, match="something follows"):
        train(DATA, nn.Sequential(*mlp(outputs=CLASSES), nn.Softmax(dim=1)), Prototypes())


@pytest.mark.parametrize("method", ["prototypes", "head+prototypes"])
def test_who_asks_for_the_method_gets_its_sharpness(method: Any) -> None:
    """Not the α of a gradient step, unless it is given."""
    inner: Table = {"method": method}
    wanted = replace(PROTOTYPES, method=method)
    assert RunSpec.from_dict({"inner": inner}).algorithm.inner == wanted
    own = {"algorithm": "fedmeta", "algorithms": {"fedmeta": {"inner": inner}}}
    assert RunSpec.from_dict(own).algorithm.inner == wanted
    given = {"inner": {**inner, "step_size": 0.3}}
    assert RunSpec.from_dict(given).algorithm.inner == replace(wanted, step_size=0.3)


def test_misuse_is_refused() -> None:
    values, model = regression(), double(mlp(2, outputs=1))
    rows = unpacked(values, values.nodes[0], PLAIN, torch.float64)
    with pytest.raises(SettingError, match="means of classes"):
        adapt(Objective(model, squared_error), PROTOTYPES, model.theta, rows.support)
    with pytest.raises(SettingError, match="batch_size"):
        Adaptation(method="prototypes", batch_size=2)
    with pytest.raises(SettingError, match="learned"):
        Adaptation(method="prototypes", learned="tensor")
    for inner in (Adaptation(), KEPT):
        with pytest.raises(SettingError, match=r"inner\.method"):
            Prototypes(inner)
    with pytest.raises(SettingError, match="curvature"):
        Prototypes(curvature="none")


@pytest.mark.parametrize("rule", [Prototypes(), ADDED], ids=["made", "added"])
def test_a_trained_model_travels(rule: Algorithm, tmp_path: Path) -> None:
    network = ModelSettings("mlp", hidden=(4,))
    settings = TrainingSettings(rounds=3, evaluate_every=0)
    run = train(DATA, network, rule, settings, execution=DOUBLE)
    run.meta_model.save(tmp_path / "model.safetensors")
    again = MetaModel.load(tmp_path / "model.safetensors")
    assert again.adaptation == rule.inner
    node = DATA.targets[0]
    inputs, labels = DATA.inputs[node.support], DATA.labels[node.support]
    named = [DATA.task.class_names[label] for label in labels]
    adapted = [each.adapt(inputs, named) for each in (run.meta_model, again)]
    assert torch.equal(*(flat(each.theta) for each in adapted))
    query = DATA.inputs[node.query], DATA.labels[node.query]
    right = (adapted[1].predict(query[0]).argmax(dim=1).numpy() == query[1]).mean()
    assert run.evaluation is not None
    assert right == pytest.approx(run.evaluation.values[1][0])
    export_onnx(again, tmp_path / "model.onnx", adaptable=True)
    model = fedmeta_edge.load(tmp_path / "model.onnx")
    before = fedmeta_edge.predict(model, query[0])
    assert np.abs(before - again.predict(query[0]).numpy()).max() < 1e-4
    for steps in (1, 3):  # further steps change nothing
        weights = fedmeta_edge.adapt(model, inputs, labels, steps).weights
        found = fedmeta_edge.predict(model, query[0], weights)
        assert np.abs(found - adapted[1].predict(query[0]).numpy()).max() < 1e-4
    _, choice = fedmeta_edge.adapt_if_it_helps(model, inputs, labels)
    assert {*choice.losses} == {"none", "prototypes"}
