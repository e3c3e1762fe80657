"""The pull of an adaptation to where it started: by hand, by autograd, in stretches, in files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedmeta_edge
from export.exporting import adapted, farthest, meta_model, opened, samples, stepped
from fedmeta.config.spec import build_algorithm
from fedmeta.core import randomness, step_sizes
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective, adapt
from fedmeta.core.serialization import LATER, serialize
from fedmeta.core.storage import read_tensors, write_tensors
from fedmeta.core.tree import Tree
from fedmeta.data import NodeData, Samples, unpacked
from fedmeta.engine.cohort import node_keys
from fedmeta.engine.layout import Layout
from fedmeta.evaluation.evaluate import Targets, TargetStore, evaluate
from fedmeta.export import export_onnx
from fedmeta.models.losses import cross_entropy
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.ui.adaptation import Labelled, adapt_stepwise
from oracle.personal import prox
from problems import (
    LAYOUTS,
    PLAIN,
    classification,
    double,
    flat,
    mlp,
    twin_model,
    twin_nodes,
    unflat,
)

DATA, MODULE = classification(), mlp()
MODEL, NODES = double(MODULE), twin_nodes(DATA)
OBJECTIVE = Objective(MODEL, cross_entropy)
ONE = torch.ones((), dtype=torch.float64)
FACTS = Facts(ONE, ONE, ONE, torch.tensor(0), randomness.key(0))


def a_node() -> NodeData:
    return unpacked(DATA, DATA.sources[0], PLAIN, torch.float64)


@pytest.mark.parametrize("curvature", ["exact", "finite-difference", "none"])
def test_by_hand(curvature: str) -> None:
    # L(θ) = (θx − y)²; support (2, 1), query (1, 3); θ = 1, α = 0.1, λ = 0.5:
    # φ_1 = 1 − 0.1·4 = 0.6, φ_2 = 0.6 − 0.1·(0.8 + 0.5·(0.6 − 1)) = 0.54
    # dφ_1/dθ = 1 − 0.8 = 0.2, dφ_2/dθ = (1 − 0.8 − 0.05)·0.2 + 0.05 = 0.08, r = 2·(0.54 − 3)
    objective = Objective(
        lambda theta, x, _key: theta["a"] * x, lambda out, y: (out - y).square().sum(-1)
    )

    def one(x: float, y: float) -> Samples:
        return Samples(
            *(torch.tensor([[each]]).double() for each in (x, y)), torch.ones(1).double()
        )

    data, theta = NodeData(one(2, 1), one(1, 3)), {"a": ONE}
    rule = Adaptation(0.1, 2, pull=0.5)
    assert float(adapt(objective, rule, theta, data.support)["a"]) == pytest.approx(0.54)
    gradient, loss = meta_gradient(objective, MetaGradient(rule, curvature), theta, data, FACTS)
    assert float(loss) == pytest.approx(2.46**2)
    expected = -4.92 if curvature == "none" else -4.92 * 0.08
    assert float(gradient["a"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scope", ["all", "head"])
@pytest.mark.parametrize("learned", ["none", "tensor", "parameter"])
def test_the_meta_gradient_is_autograd_through_the_adaptation(scope: str, learned: str) -> None:
    rule = Adaptation(0.2, 4, scope, learned=learned, learning_scale=2.0, pull=0.8)  # type: ignore[arg-type]
    joint = {**MODEL.theta, **step_sizes.start(rule, MODEL.theta)}
    joint = {name: leaf + 0.1 if name.startswith("step:") else leaf for name, leaf in joint.items()}
    data = a_node()

    def after(vector: Tensor) -> Tensor:
        theta, steps = step_sizes.split(unflat(vector, joint))
        phi: Tree = theta
        for _ in range(rule.steps):
            gradient = torch.func.grad(OBJECTIVE.value)(phi, data.support)
            for name in rule.moves(theta):
                factor = torch.exp(2.0 * steps[f"step:{name}"]) if steps else 1.0
                step = gradient[name] + 0.8 * (phi[name] - theta[name])
                phi = {**phi, name: phi[name] - 0.2 * factor * step}
        return OBJECTIVE.value(phi, data.query)

    expected = torch.func.grad(after)(flat(joint))
    got, _ = meta_gradient(OBJECTIVE, MetaGradient(rule), joint, data, FACTS)
    assert float((flat(got) - expected).abs().max()) < 1e-12


def test_without_a_pull_nothing_changes_and_with_one_the_first_step_is_free() -> None:
    data = a_node()
    for steps in (1, 3):
        plain, pulled = (
            flat(adapt(OBJECTIVE, Adaptation(0.2, steps, pull=pull), MODEL.theta, data.support))
            for pull in (0.0, 0.9)
        )
        assert torch.equal(plain, pulled) == (steps == 1)


@pytest.mark.parametrize("layout", ["batched-3", "loop"])
def test_evaluation_in_stretches_pulls_to_the_model(layout: str) -> None:
    rule = Adaptation(0.4, pull=1.5)
    targets = Targets(DATA, DATA.targets, PLAIN, 0)
    store = TargetStore([targets, targets], LAYOUTS[layout])
    other = {name: leaf + 0.1 for name, leaf in MODEL.theta.items()}
    models = [(MODEL.theta, rule), (other, rule)]
    for theta, found in zip(
        (MODEL.theta, other),
        evaluate(Layout(LAYOUTS[layout], OBJECTIVE), models, (0, 1, 3, 6), store),
        strict=True,
    ):
        for place, node in enumerate(DATA.targets):
            data = unpacked(DATA, node, PLAIN, torch.float64)
            for steps in (1, 3, 6):
                phi = prox(
                    flat(theta),
                    *data.support[:2],
                    twin_model(MODULE),
                    cross_entropy,
                    alpha=0.4,
                    lam=1.5,
                    steps=steps,
                )
                loss = OBJECTIVE.value(unflat(phi, theta), data.query)
                assert found.losses[steps][place] == pytest.approx(float(loss), abs=1e-12)


def test_stretches_with_mini_batches() -> None:
    support, key = a_node().support, node_keys(DATA.sources, 0)[0]
    rule = Adaptation(0.3, 5, batch_size=2, pull=2.0)
    whole = adapt(OBJECTIVE, rule, MODEL.theta, support, key)
    part = adapt(OBJECTIVE, replace(rule, steps=2), MODEL.theta, support, key)
    rest = replace(rule, steps=3)
    joined = adapt(OBJECTIVE, rest, part, support, key, first_step=2, anchor=MODEL.theta)
    assert torch.equal(flat(whole), flat(joined))
    assert not torch.equal(flat(whole), flat(adapt(OBJECTIVE, rest, part, support, key, 2)))


@pytest.mark.parametrize("scope", ["all", "head"])
def test_an_exported_graph_pulls_to_the_exported_model(scope: str, tmp_path: Path) -> None:
    rule = Adaptation(0.1, 6, scope, pull=4.0)
    model = meta_model(ModelSettings("mlp"), (1, 8, 8), 10, rule)
    export_onnx(model, tmp_path / "model.onnx", adaptable=True)
    inputs, labels = samples(model, 7)
    wanted = adapted(model, inputs, labels, 6)
    found, _ = stepped(opened(tmp_path / "model.onnx"), inputs, labels, 6)
    assert farthest(found, wanted) < 1e-5
    edge = fedmeta_edge.adapt(fedmeta_edge.load(tmp_path / "model.onnx"), inputs, labels)
    assert farthest(edge.weights, wanted) < 1e-5
    unpulled = replace(model, adaptation=replace(rule, pull=0.0))
    assert farthest(found, adapted(unpulled, inputs, labels, 6)) > 1e-3


def test_the_page_shows_the_steps_of_the_whole() -> None:
    model = meta_model(ModelSettings("mlp"), (4,), 3, Adaptation(0.3, 4, pull=3.0))
    inputs, labels = samples(model, 6)
    support = Labelled(inputs, labels)
    _, last = adapt_stepwise(model, support, support, inputs, 4)
    whole = model.adapt(inputs, np.array(model.task.class_names)[labels])
    assert torch.equal(flat(last.theta), flat(whole.theta))


def test_a_model_file_carries_it_and_older_ones_have_none(tmp_path: Path) -> None:
    about = {"network": {"name": "mlp"}, "loss": "auto"}
    for pull in (0.0, 2.5):
        model = meta_model(ModelSettings("mlp"), (4,), 3, Adaptation(0.3, 4, pull=pull))
        replace(model, about=about).save(tmp_path / "model.safetensors")
        tensors, metadata = read_tensors(tmp_path / "model.safetensors", "model")
        facts = json.loads(metadata["fedmeta"])
        assert facts["adaptation"].get("pull") == (pull or None)
        assert MetaModel.load(tmp_path / "model.safetensors").adaptation == model.adaptation
    del facts["adaptation"]["pull"], facts["sha256"]
    write_tensors(tmp_path / "old.safetensors", tensors, {"fedmeta": json.dumps(facts)})
    assert MetaModel.load(tmp_path / "old.safetensors").adaptation.pull == 0


def test_settings_of_older_runs_are_those_of_today() -> None:
    @dataclass(frozen=True)
    class Settings:
        old: int = 1
        new: int = field(default=2, metadata=LATER)

    assert serialize(Settings()) == {"old": 1}
    assert serialize(Settings(new=3)) == {"old": 1, "new": 3}
    assert "pull" not in serialize(Adaptation())
    algorithm = build_algorithm({"inner": {"pull": 0.5}}, "fedavg")
    assert algorithm.inner.pull == 0.5
    kept = build_algorithm({"inner": {"steps": 3}}, "pfedme").inner
    assert (kept.steps, kept.pull) == (3, 15.0)
