from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmeta.algorithms import FedAvg
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DataError
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.serialization import deserialize
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, Node, unpacked
from fedmeta.engine.cohort import node_keys
from fedmeta.engine.layout import Layout
from fedmeta.evaluation import evaluate as evaluation
from fedmeta.evaluation.evaluate import evaluate, evaluate_model
from fedmeta.evaluation.result import Evaluation, statistics
from fedmeta.evaluation.targets import Targets, TargetStore
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.models.networks import ModelSettings
from fedmeta.training.train import train
from problems import LAYOUTS, PLAIN, classification, double, mlp, regression, softmax_regression

MANY = ((3, 4), (2, 3), (5, 2), (1, 6))
CLASSES = classification(targets=MANY, classes=3)
MODEL = double(mlp())


def with_precise(data: Federation, sizes: tuple[int, ...]) -> Federation:
    """Targets judged on samples of all targets but their own support, as many as told."""
    first, *_ = data.targets[0].support
    nodes = list(data.sources)
    for node, size in zip(data.targets, sizes, strict=True):
        others = np.setdiff1d(np.arange(first, len(data.labels)), node.support)
        nodes.append(replace(node, precise=others[::-1][:size]))
    return data.with_nodes(nodes)


PRECISE = with_precise(CLASSES, (9, 0, 3, 14))


def alone(
    layout: Layout,
    theta: Tree,
    rule: Adaptation,
    steps: tuple[int, ...],
    data: Federation,
    nodes: Sequence[Node] | None = None,
    seed: int = 0,
) -> Evaluation:
    targets = Targets(data, data.targets if nodes is None else nodes, PLAIN, seed)
    store = TargetStore([targets], layout.execution)
    return evaluate(layout, [(theta, rule)], steps, store)[0]


def evaluated(
    data: Federation = CLASSES,
    layout: str = "batched-3",
    steps: tuple[int, ...] = (0, 1, 3),
    rule: Adaptation = Adaptation(0.5),
    seed: int = 0,
) -> Evaluation:
    objective = Objective(MODEL, cross_entropy)
    return alone(Layout(LAYOUTS[layout], objective), MODEL.theta, rule, steps, data, seed=seed)


def test_statistics_by_hand() -> None:
    values, sizes = [0.1 * n for n in range(1, 13)], [1] * 11 + [9]
    got = statistics(values, sizes, "accuracy")
    assert got["mean"] == pytest.approx(0.65)
    assert got["median"] == pytest.approx(0.65)
    assert got["weighted_mean"] == pytest.approx((6.6 + 9 * 1.2) / 20)
    assert got["worst_decile"] == pytest.approx(0.15)  # the worst 2 of 12
    assert statistics(values, sizes, "mse")["worst_decile"] == pytest.approx(1.15)
    assert statistics([0.5], [3], "accuracy") == {
        "mean": 0.5,
        "weighted_mean": 0.5,
        "median": 0.5,
        "worst_decile": 0.5,
    }
    assert statistics([1.0] * 9 + [0.0], [1] * 10, "accuracy")["worst_decile"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", [Adaptation(0.5), Adaptation(0.5, scope="head")])
def test_against_brute_force(layout: str, rule: Adaptation) -> None:
    got = evaluated(layout=layout, rule=rule)
    moves = rule.moves(MODEL.theta)
    for place, node in enumerate(CLASSES.targets):
        data = unpacked(CLASSES, node, PLAIN, torch.float64)
        theta = {name: leaf.clone().requires_grad_() for name, leaf in MODEL.theta.items()}
        for step in range(4):
            if step in got.values:
                outputs = MODEL(theta, data.query.inputs)
                right = (outputs.argmax(1) == data.query.labels).double().mean()
                seen = sorted(set(data.support.labels.tolist()))
                among = outputs[:, seen].argmax(1)
                right_seen = (torch.tensor(seen)[among] == data.query.labels).double().mean()
                loss = cross_entropy(outputs, data.query.labels).mean()
                assert got.values[step][place] == pytest.approx(float(right))
                assert got.seen_classes[step][place] == pytest.approx(float(right_seen))
                assert got.losses[step][place] == pytest.approx(float(loss.detach()), abs=1e-12)
            loss = cross_entropy(MODEL(theta, data.support.inputs), data.support.labels).mean()
            gradients = torch.autograd.grad(loss, list(theta.values()))
            theta = {
                name: (leaf - 0.5 * g * (name in moves)).detach().requires_grad_()
                for (name, leaf), g in zip(theta.items(), gradients, strict=True)
            }
    assert set(got.values) == {0, 1, 3}


def test_masking_to_seen_classes_is_another_column() -> None:
    got = evaluated()
    assert got.values[0] != got.seen_classes[0]
    table = got.summary()
    assert table["1"]["mean"] == pytest.approx(np.mean(got.values[1]))
    assert table["1"]["mean_seen_classes"] == pytest.approx(np.mean(got.seen_classes[1]))
    assert table["1"]["mean_loss"] == pytest.approx(np.mean(got.losses[1]))
    rows = got.per_node()
    assert [row["name"] for row in rows] == ["n5", "n6", "n7", "n8"]
    assert [row["query"] for row in rows] == [4, 3, 2, 6]
    assert rows[2]["metric"]["3"] == got.values[3][2]


def test_stretches_with_mini_batches_are_one_piece() -> None:
    rule = Adaptation(0.5, batch_size=2)
    together = evaluated(steps=(0, 2, 5), rule=rule)
    apart = evaluated(steps=(5,), rule=rule)
    assert together.losses[5] == apart.losses[5]
    loop = evaluated(steps=(5, 2), rule=rule, layout="loop")
    assert loop.losses[5] == pytest.approx(together.losses[5], abs=1e-12)
    assert loop.losses[2] == pytest.approx(together.losses[2], abs=1e-12)
    assert evaluated(steps=(5,), rule=rule, seed=1).losses[5] != apart.losses[5]
    keys = node_keys(CLASSES.targets, 0)
    objective = Objective(MODEL, cross_entropy)
    for place, node in enumerate(CLASSES.targets):
        data = unpacked(CLASSES, node, PLAIN, torch.float64)
        phi = adapt(
            objective, Adaptation(0.5, 5, batch_size=2), MODEL.theta, data.support, keys[place]
        )
        loss = objective.value(phi, data.query)
        assert apart.losses[5][place] == pytest.approx(float(loss), abs=1e-12)


def test_dropout_is_off() -> None:
    plain = double(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)))
    noisy = double(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)))
    theta = dict(zip(noisy.theta, plain.theta.values(), strict=True))
    results = [
        alone(
            Layout(LAYOUTS["loop"], Objective(model, cross_entropy)),
            start,
            Adaptation(0.5),
            (2,),
            CLASSES,
        ).losses[2]
        for model, start in ((plain, plain.theta), (noisy, theta))
    ]
    assert results[0] == pytest.approx(results[1], abs=1e-12)


def test_regression_has_mean_squared_error_and_no_classes() -> None:
    data, model = regression(), double(softmax_regression(2, 1))
    layout = Layout(LAYOUTS["batched-all"], Objective(model, squared_error))
    got = alone(layout, model.theta, Adaptation(0.1), (0,), data)
    assert got.metric == "mse"
    assert got.seen_classes == {}
    for place, node in enumerate(data.targets):
        outputs = model(model.theta, torch.tensor(data.inputs[node.query]))
        error = (outputs - torch.tensor(data.labels[node.query])).square().mean()
        assert got.values[0][place] == pytest.approx(float(error))
    assert "mean_seen_classes" not in got.summary()["0"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", [Adaptation(0.5), Adaptation(0.5, batch_size=2)])
def test_precise_sets_judge_the_same_adapted_models(layout: str, rule: Adaptation) -> None:
    got, plain = evaluated(PRECISE, layout, rule=rule), evaluated(layout=layout, rule=rule)
    assert plain.precise is None
    assert replace(got, precise=None) == plain
    precise = got.precise
    assert precise is not None
    assert (precise.nodes, precise.query_sizes) == (("n5", "n7", "n8"), (9, 3, 14))
    objective, keys = Objective(MODEL, cross_entropy), node_keys(PRECISE.targets, 0)
    for number, node in enumerate(PRECISE.targets):
        if node.name not in precise.nodes:
            continue
        place = precise.nodes.index(node.name)
        data = unpacked(PRECISE, node, PLAIN, torch.float64)
        inputs = torch.tensor(PRECISE.inputs[node.precise])
        labels = torch.tensor(PRECISE.labels[node.precise])
        seen = sorted(set(data.support.labels.tolist()))
        for steps in (0, 1, 3):
            rules = replace(rule, steps=steps)
            phi = adapt(objective, rules, MODEL.theta, data.support, keys[number])
            outputs = MODEL(phi, inputs)
            right = (outputs.argmax(1) == labels).double().mean()
            among = torch.tensor(seen)[outputs[:, seen].argmax(1)]
            loss = cross_entropy(outputs, labels).mean()
            assert precise.values[steps][place] == pytest.approx(float(right))
            assert precise.losses[steps][place] == pytest.approx(float(loss), abs=1e-12)
            seen_right = (among == labels).double().mean()
            assert precise.seen_classes[steps][place] == pytest.approx(float(seen_right))
    assert precise.values[1] != [got.values[1][place] for place in (0, 2, 3)]


def test_precise_sets_in_words() -> None:
    got = evaluated(PRECISE)
    assert got.precise is not None
    table = got.precise.summary()
    assert {*table} == {"0", "1", "3"}
    assert {*table["1"]} == {*got.summary()["1"]}
    assert table["3"]["mean"] == pytest.approx(np.mean(got.precise.values[3]))
    rows = got.per_node()
    assert [row["precise"] for row in rows] == [9, 0, 3, 14]
    assert rows[1]["precise_metric"] == {}
    assert rows[3]["precise_metric"]["1"] == got.precise.values[1][2]
    means = got.means()
    assert means["target"]["3"] == pytest.approx(np.mean(got.values[3]))
    assert means["precise"]["3"] == table["3"]["mean"]
    assert {*evaluated().means()} == {"target"}
    assert [row["precise"] for row in evaluated().per_node()] == [0, 0, 0, 0]


@pytest.mark.parametrize("layout", ["batched-all", "loop"])
def test_precise_sets_pass_through_the_model_in_parts(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the adaptation is not done twice."""
    passes: list[int] = []

    def evaluated_by_parts(times: int, data: Federation) -> Evaluation:
        monkeypatch.setattr(evaluation, "_AT_ONCE", times)

        def predict(theta: Tree, inputs: torch.Tensor, key: torch.Tensor | None) -> torch.Tensor:
            passes.append(len(inputs))
            return MODEL(theta, inputs, key)

        laid = Layout(LAYOUTS[layout], Objective(predict, cross_entropy))
        passes.clear()
        return alone(laid, MODEL.theta, Adaptation(0.5), (0, 2), data, data.targets[:1])

    whole = evaluated_by_parts(99, PRECISE)
    query, support = 4, 3
    assert passes == [query, 9, support, support, query, 9]
    assert evaluated_by_parts(99, CLASSES) == replace(whole, precise=None)
    assert passes == [query, support, support, query]
    parts = evaluated_by_parts(1, PRECISE)
    at_once = query + support
    assert passes == [query, at_once, 2, support, support, query, at_once, 2]
    assert parts.precise is not None
    assert whole.precise is not None
    assert parts.precise.losses[2] == pytest.approx(whole.precise.losses[2], abs=1e-12)


def test_a_model_that_blew_up_on_precise_samples_alone() -> None:
    fine = Evaluation("accuracy", ("a",), (3,), {1: [1.0]}, {}, {1: [0.1]})
    blown = replace(fine, values={1: [float("nan")]}, losses={1: [float("inf")]})
    assert fine.is_finite(1)
    assert not replace(fine, precise=blown).is_finite(1)
    assert replace(fine, precise=blown).per_node()[0]["precise_metric"] == {"1": None}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("resident", [False, True])
def test_several_models_at_once_do_as_each_alone(layout: str, resident: bool) -> None:
    """Also where they have other numbers of targets, sizes, precise sets, seeds and factors."""
    laid = Layout(LAYOUTS[layout], Objective(MODEL, cross_entropy))
    few = with_precise(classification(targets=((2, 7), (4, 1)), classes=3, seed=1), (0, 0))
    cases = []
    for number, data in enumerate((PRECISE, few, CLASSES)):
        theta = {name: leaf * (1 + 0.3 * number) for name, leaf in MODEL.theta.items()}
        factors = {name: torch.full_like(leaf, 1 + number) for name, leaf in MODEL.theta.items()}
        rule = Adaptation(0.2, batch_size=2, learned="parameter", factors=factors)
        cases.append((theta, rule, Targets(data, data.targets, PLAIN, number)))
    store = TargetStore([each for *_, each in cases], laid.execution, resident=resident)
    models = [(theta, rule) for theta, rule, _ in cases]
    for _ in range(2):  # again from what was kept
        found = evaluate(laid, models, (0, 1, 3), store)
        for got, (theta, rule, targets) in zip(found, cases, strict=True):
            single = TargetStore([targets], laid.execution)
            (wanted,) = evaluate(laid, [(theta, rule)], (0, 1, 3), single)
            assert (got.precise is None) == (wanted.precise is None)
            for mine, theirs in ((got, wanted), (got.precise, wanted.precise)):
                if mine is None or theirs is None:
                    continue
                assert (mine.nodes, mine.query_sizes) == (theirs.nodes, theirs.query_sizes)
                assert mine.values == theirs.values
                assert mine.seen_classes == theirs.seen_classes
                for steps, losses in theirs.losses.items():
                    assert mine.losses[steps] == pytest.approx(losses, abs=1e-12)


def test_samples_are_kept_once() -> None:
    """Not for chunks of two sizes, which memory that ran out leaves."""
    targets = Targets(PRECISE, PRECISE.targets, PLAIN, 0)
    store = TargetStore([targets], LAYOUTS["batched-all"], resident=True)
    everyone = store.chunk(torch.arange(4))
    assert store.chunk(torch.arange(4)) is everyone
    halves = [store.chunk(rows) for rows in torch.arange(4).split(2)]
    for rows, half in zip(torch.arange(4).split(2), halves, strict=True):
        assert store.chunk(rows) is half
        assert torch.equal(half.support.inputs, everyone.support.inputs[rows])
    assert store.chunk(torch.arange(4)) is not everyone
    small = replace(LAYOUTS["batched-all"], memory=1e-6)
    store = TargetStore([targets], small, resident=True)
    assert store.chunk(torch.arange(4)) is not store.chunk(torch.arange(4))


def test_without_targets() -> None:
    data = CLASSES.with_nodes(CLASSES.sources)
    with pytest.raises(DataError, match="no target nodes"):
        evaluated(data)


def test_any_chunk_size_serves() -> None:
    execution = Execution(dtype="float64", path="batched", chunk=None)
    layout = Layout(execution, Objective(MODEL, cross_entropy))
    got = alone(layout, MODEL.theta, Adaptation(0.5), (1,), CLASSES)
    assert got.losses[1] == pytest.approx(evaluated().losses[1], abs=1e-12)


def test_a_model_evaluates_as_its_run_did() -> None:
    data = classification()
    run = train(data, ModelSettings("mlp", hidden=(4,)), FedAvg(), TrainingSettings(rounds=2))
    own = deserialize(Execution, run.summary["settings"]["execution"], "execution")
    assert evaluate_model(run.meta_model, data, execution=own) == run.evaluation
    looped = evaluate_model(run.meta_model, data, steps=(0, 1))
    assert run.evaluation is not None
    assert looped.values[1] == pytest.approx(run.evaluation.values[1])
    with pytest.raises(DataError, match="other classes or shapes"):
        evaluate_model(run.meta_model, classification(classes=2))
