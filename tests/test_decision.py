"""Whether and how a node adapts: cases by hand, an independent count, and all surfaces alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmeta import DataSettings, load
from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.config.training import TrainingSettings
from fedmeta.core.decision import CANDIDATES, candidate_rules, decide, possible_candidates
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import PROTOTYPES, RECOMMENDED, Adaptation, Objective, adapt
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, unpacked
from fedmeta.evaluation.evaluate import evaluate_model, score
from fedmeta.models.losses import cross_entropy, squared_error
from fedmeta.models.networks import ModelSettings
from fedmeta.training.run import Run
from fedmeta.training.train import train
from problems import DOUBLE, LAYOUTS, PLAIN, classification, double, mlp, regression

STEPS = ("none", "one", "several")


def linear(theta: Tree, inputs: Tensor, key: Tensor | None) -> Tensor:
    return inputs @ theta["weight"].T + theta["bias"]


CLASSES = Objective(linear, cross_entropy)
VALUES = Objective(lambda theta, x, _key: theta["a"].expand(len(x), 1), squared_error)
ZERO = {"a": torch.zeros(1, dtype=torch.float64)}


def samples(inputs: object, labels: object) -> Samples:
    x, y = torch.tensor(inputs, dtype=torch.float64), torch.tensor(labels)
    return Samples(x, y if y.dtype == torch.int64 else y.double(), torch.ones(len(y)).double())


def chosen(
    objective: Objective,
    rule: Adaptation,
    theta: Tree,
    support: Samples,
    among: tuple[str, ...] = STEPS,
) -> str:
    rules = candidate_rules(rule, among)
    return list(rules)[int(decide(objective, rule, theta, support, among=among).choice)]


def head(*rows: tuple[float, ...]) -> Tree:
    weight = torch.tensor(rows, dtype=torch.float64)
    return {"weight": weight, "bias": weight.new_zeros(len(rows))}


def test_values_that_disagree_keep_the_model() -> None:
    # a = 0 and labels ±10, two of each. Without one of +10 the mean of the others is −10/3, and a
    # step of α = 1/2 goes there: loss (10 + 10/3)² = 1600/9 instead of 100, for every sample.
    support = samples([[0.0]] * 4, [[10.0], [-10.0], [10.0], [-10.0]])
    found = decide(VALUES, Adaptation(0.5), ZERO, support, among=STEPS)
    assert found.losses.tolist() == pytest.approx([100, 1600 / 9, 1600 / 9])
    assert (int(found.choice), int(found.counted)) == (0, 4)


def test_values_that_agree_are_followed() -> None:
    support = samples([[0.0]] * 4, [[9.0], [10.0], [11.0], [10.0]])
    assert chosen(VALUES, Adaptation(0.5), ZERO, support) == "one"
    assert chosen(VALUES, Adaptation(0.5, steps=0), ZERO, support) in ("one", "several")
    # A step of α = 1/20 goes a tenth of the way, five of them 1 − 0.9⁵ = 41 %.
    assert chosen(VALUES, Adaptation(0.05), ZERO, support) == "several"


def test_two_samples_overturn_nothing_by_chance() -> None:
    # Labels 1 and y: a step of α = 1/2 goes to the other one, so both have the loss (1 − y)², and
    # 1 and y² without a step: both speak for none. s/√n is half the difference, t = 6.314.
    unsure = samples([[0.0]] * 2, [[1.0], [-0.1]])
    lead = np.array([1.1**2 - 1, 1.1**2 - 0.01])
    assert lead.mean() / (abs(lead[0] - lead[1]) / 2) < 6.314
    assert chosen(VALUES, Adaptation(0.5), ZERO, unsure, ("one",)) == "one"
    sure = samples([[0.0]] * 2, [[1.0], [-1.0]])  # both leads are 3
    assert chosen(VALUES, Adaptation(0.5), ZERO, sure, ("one",)) == "none"


def test_one_value_adapts_unless_its_own_loss_grows() -> None:
    one = samples([[0.0]], [[2.0]])
    assert chosen(VALUES, Adaptation(0.5), ZERO, one) == "one"
    assert chosen(VALUES, Adaptation(3.0), ZERO, one) == "none"  # a = 12, loss 100 instead of 4


def test_a_class_that_is_known_already_is_not_learned_again() -> None:
    theta = head((1.0, 0.0), (0.0, 1.0))
    for count in (1, 2):
        right = samples([[2.0, 1.0]] * count, [0] * count)
        found = decide(CLASSES, Adaptation(5.0), theta, right, among=STEPS)
        assert int(found.choice) == 0
        phi = adapt(CLASSES, Adaptation(5.0), theta, right)  # and the step would have harmed
        other = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
        assert int(linear(theta, other, None).argmax()) == 1
        assert int(linear(phi, other, None).argmax()) == 0
        wrong = samples([[2.0, 1.0]] * count, [1] * count)
        assert chosen(CLASSES, Adaptation(5.0), theta, wrong) == "one"


def test_two_samples_whose_step_harms_keep_the_model() -> None:
    theta = head((1.0, 0.0), (0.0, 1.0))
    uneven = samples([[30.0, 29.0], [20.0, 30.0]], [0, 1])  # features far from 1, both right
    phi = adapt(CLASSES, Adaptation(0.5), theta, uneven)
    assert float(CLASSES.value(phi, uneven)) > 10 * float(CLASSES.value(theta, uneven))
    assert chosen(CLASSES, Adaptation(0.5), theta, uneven) == "none"
    assert chosen(CLASSES, Adaptation(1e-4), theta, uneven) == "one"


def test_five_classes_of_one_sample_each_adapt() -> None:
    support = samples(np.eye(5).tolist(), list(range(5)))
    found = decide(CLASSES, RECOMMENDED, head(*[(0.0,) * 5] * 5), support)
    assert list(candidate_rules(RECOMMENDED))[int(found.choice)] == "one"
    assert int(found.counted) == 0
    assert bool(found.losses.isnan().all())


def test_flipped_labels_adapt_whatever_the_model_was_trained_for() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(12) % 2
    rows = (2 * labels[:, None] - 1) * [1.0, 0.0] + 0.1 * rng.normal(size=(12, 2))
    theta = head((-4.0, 0.0), (4.0, 0.0))
    still = Adaptation(0.3, steps=0)
    flipped = samples(rows.tolist(), (1 - labels).tolist())
    assert chosen(CLASSES, still, theta, flipped, CANDIDATES) != "none"


def test_steps_that_blow_up_are_out() -> None:
    support = samples([[0.0]] * 4, [[1.0], [2.0], [1.0], [2.0]])
    blown = Adaptation(1e300, steps=3)
    assert chosen(VALUES, blown, ZERO, support) == "none"


def by_counting(
    objective: Objective, rule: Adaptation, theta: Tree, support: Samples
) -> tuple[np.ndarray, int]:
    """Mean losses of none, one and several, sample by sample and part by part."""
    total, counted = np.zeros(3), 0
    for j in range(len(support.mask)):
        keep = [i for i in range(len(support.mask)) if i % 32 != j % 32]
        rest, mine = (Samples(*(part[rows] for part in support)) for rows in (keep, [j]))
        classes = not support.labels.is_floating_point()
        if not keep or (classes and not bool((rest.labels == mine.labels).any())):
            continue
        counted += 1
        for place, steps in enumerate((0, 1, 5)):
            phi = adapt(objective, replace(rule, steps=steps), theta, rest)
            total[place] += float(objective.value(phi, mine))
    return total / max(1, counted), counted


@pytest.mark.parametrize("size", [3, 12, 40])
@pytest.mark.parametrize("scope", ["head", "all"])
def test_losses_are_those_of_leaving_out_one_by_one(size: int, scope: str) -> None:
    model = double(mlp())
    data = classification(((size, 1),), seed=size)
    support = unpacked(data, data.sources[0], PLAIN, torch.float64).support
    objective, rule = Objective(model, cross_entropy), Adaptation(0.5, scope=scope)
    wanted, counted = by_counting(objective, rule, model.theta, support)
    found = decide(objective, rule, model.theta, support, among=STEPS)
    assert int(found.counted) == counted > 1
    assert found.losses.tolist() == pytest.approx(wanted.tolist(), rel=1e-10)


@pytest.mark.parametrize("scope", ["head", "all"])
def test_nodes_at_once_and_padding_change_nothing(scope: str) -> None:
    model = double(mlp())
    objective = Objective(model, cross_entropy)
    data = classification(((9, 1), (1, 1), (2, 1), (5, 1), (34, 1)))
    supports = [unpacked(data, node, PLAIN, torch.float64).support for node in data.sources]
    rule = Adaptation(1.5, scope=scope)

    def padded(part: Samples) -> Samples:
        more = 36 - len(part.mask)
        return Samples(
            torch.cat([part.inputs, part.inputs.new_full((more, 3), 7.0)]),
            torch.cat([part.labels, part.labels.new_full((more,), 2)]),
            torch.cat([part.mask, part.mask.new_zeros(more)]),
        )

    stacked = Samples(*map(torch.stack, zip(*map(padded, supports), strict=True)))
    together = torch.func.vmap(lambda each: decide(objective, rule, model.theta, each))(stacked)
    for place, support in enumerate(supports):
        alone = decide(objective, rule, model.theta, support)
        assert int(together.choice[place]) == int(alone.choice)
        assert int(together.counted[place]) == int(alone.counted)
        assert torch.allclose(together.losses[place], alone.losses, atol=1e-9, equal_nan=True)
    assert len(set(together.choice.tolist())) > 1


def test_candidates() -> None:
    several = candidate_rules(Adaptation(0.1, steps=3, batch_size=2, learned="tensor"))
    assert [rule.steps for rule in several.values()] == [0, 1, 1, 3]
    assert several["prototypes"] == PROTOTYPES
    assert list(candidate_rules(Adaptation(), ["one"])) == ["none", "one"]
    with pytest.raises(SettingError, match="no candidate 'tow'"):
        candidate_rules(Adaptation(), ["tow"])
    model, inputs = double(mlp()), torch.randn(4, 3).double()
    parts = Adaptation(), model.theta, inputs
    labels = torch.zeros(4, dtype=torch.int64)
    assert possible_candidates(model, *parts, labels) == CANDIDATES
    assert possible_candidates(model, *parts, labels.double()) == STEPS
    normed = double(nn.Sequential(*mlp(), nn.Softmax(dim=1)))
    assert possible_candidates(normed, Adaptation(), normed.theta, inputs, labels) == STEPS


DATA = classification(targets=((9, 4), (1, 3), (2, 3), (6, 5), (12, 6)))
TRAINING = TrainingSettings(rounds=4, evaluate_every=2, decide=True)


def trained(data: Federation = DATA, training: TrainingSettings = TRAINING, **more: object) -> Run:
    network = ModelSettings("mlp", hidden=(4,))
    size = 2.0 if data.task.kind == "classification" else 0.02
    algorithm = ADMMFedMeta(replace(RECOMMENDED, step_size=size), 1.0, resplit="none")
    return train(data, network, algorithm, training, execution=DOUBLE, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [DATA, regression(targets=((9, 4), (1, 3), (6, 5)))])
def test_a_device_decides_as_evaluation_did(data: Federation) -> None:
    run = trained(data)
    found = [
        evaluate_model(run.meta_model, data, execution=LAYOUTS[name], decides=True)
        for name in ("loop", "batched-3")
    ]
    assert run.evaluation is not None
    assert found[0].choices == found[1].choices == run.evaluation.choices
    assert found[0].decided == pytest.approx(found[1].decided)
    for place, node in enumerate(data.targets):
        inputs, labels = data.inputs[node.support], data.labels[node.support]
        named = np.array(data.task.class_names)[labels] if data.task.class_names else labels
        adapted = run.meta_model.adapt(inputs, named, decide=True)
        assert adapted.about["decision"]["choice"] == found[0].choices[place]
        reached = score(adapted, data.inputs[node.query], data.labels[node.query])
        assert found[0].decided is not None
        assert reached == pytest.approx(found[0].decided[place])


def test_what_a_run_says_of_it(tmp_path: Path) -> None:
    run = trained(folder=tmp_path / "run")
    assert run.evaluation is not None
    decided = run.evaluation.decided
    assert decided is not None
    told = run.summary["decided_metric"]["target"]
    assert told["mean"] == pytest.approx(np.mean(decided))
    assert sum(told["choices"].values()) == len(DATA.targets)
    rows = run.summary["targets"]
    assert [row["choice"] for row in rows] == list(run.evaluation.choices)
    assert [row["decided"] for row in rows] == decided
    assert run.history[-1]["decided"] == {"target": told["mean"]}
    plain = trained(training=replace(TRAINING, decide=False))
    assert "decided_metric" not in plain.summary
    assert "decided" not in plain.history[-1]
    assert plain.summary["target_metric"] == run.summary["target_metric"]
    stored = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert stored["settings"]["training"]["decide"] is True
    assert "decide" not in plain.summary["settings"]["training"]  # as older versions had it


def test_a_decision_travels_with_the_model(tmp_path: Path) -> None:
    model = trained().meta_model
    node = DATA.targets[0]
    named = np.array(DATA.task.class_names)[DATA.labels[node.support]]
    adapted = model.adapt(DATA.inputs[node.support], named, decide=("none", "one"))
    assert list(adapted.about["decision"]["losses"]) == ["none", "one"]
    adapted.save(tmp_path / "mine.safetensors")
    again = type(model).load(tmp_path / "mine.safetensors")
    assert again.about["decision"] == adapted.about["decision"]
    assert "decision" not in model.about


@pytest.mark.parametrize("algorithm", [ADMMFedMeta(), FedAvg(0.1, 5)], ids=lambda each: each.name)
def test_deciding_on_digits(algorithm: ADMMFedMeta | FedAvg) -> None:
    reached: dict[str, list[float]] = {"one": [], "decided": []}
    for seed in (0, 1):
        data = load(DataSettings("digits", precise=200), seed=seed)
        training = TrainingSettings(rounds=40, evaluate_every=0, seed=seed, decide=True)
        precise = train(data, ModelSettings("mlp"), algorithm, training).evaluation
        assert precise is not None
        assert precise.precise is not None
        assert precise.precise.decided is not None
        reached["one"] += precise.precise.values[1]
        reached["decided"] += precise.precise.decided
    worst = {name: np.mean(np.sort(values)[:2]) for name, values in reached.items()}
    assert np.mean(reached["decided"]) >= np.mean(reached["one"]) - 0.005
    assert worst["decided"] >= worst["one"] - 0.01
