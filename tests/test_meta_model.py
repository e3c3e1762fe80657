from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DataError, ModelError, RunFolderError
from fedmeta.core.objective import Adaptation
from fedmeta.core.storage import read_tensors, write_tensors
from fedmeta.data import Federation, Task, federate
from fedmeta.models.meta_model import FILE, MetaModel, check_same_tensors, load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.training.run import Run
from fedmeta.training.train import train
from problems import classification, flat, regression

INNER = Adaptation(0.4, steps=2)
MLP = ModelSettings("mlp", hidden=(4,))
CLASSES, VALUES = classification(), regression()


def trained(
    data: Federation = CLASSES,
    model: nn.Module | ModelSettings = MLP,
    inner: Adaptation = INNER,
    **options: Any,
) -> Run:
    return train(
        data,
        model,
        ADMMFedMeta(inner, 1.0, resplit="none"),
        TrainingSettings(rounds=3, evaluate_every=0, evaluation_steps=(0, 1)),
        execution=Execution(dtype="float64", path="loop"),
        **options,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(folder=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def values() -> Run:
    return trained(VALUES)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_device_gets_what_evaluation_promised(run: Run, steps: int) -> None:
    assert run.evaluation is not None
    for place, node in enumerate(CLASSES.targets):
        support = CLASSES.inputs[node.support], CLASSES.labels[node.support]
        query = CLASSES.inputs[node.query], CLASSES.labels[node.query]
        adapted = run.meta_model.adapt(*support, steps=steps)
        probabilities = adapted.predict(query[0])
        assert torch.allclose(probabilities.sum(1), torch.ones(len(query[1])).double())
        right = (probabilities.argmax(1).numpy() == query[1]).mean()
        assert run.evaluation.values[steps][place] == pytest.approx(right)
        loss = -probabilities.log()[range(len(query[1])), query[1]].mean()
        assert run.evaluation.losses[steps][place] == pytest.approx(float(loss), abs=1e-10)


def test_adaptation_defaults_to_the_trained_steps_and_changes_nothing(run: Run) -> None:
    node = CLASSES.targets[0]
    before = flat(run.meta_model.theta)
    default, two = (
        run.meta_model.adapt(CLASSES.inputs[node.support], CLASSES.labels[node.support], steps)
        for steps in (None, 2)
    )
    assert torch.equal(flat(default.theta), flat(two.theta))
    assert torch.equal(flat(run.meta_model.theta), before)
    assert not torch.equal(flat(default.theta), before)


def test_regression_predicts_values(values: Run) -> None:
    node = VALUES.targets[0]
    labels = VALUES.labels[node.support]
    column = values.meta_model.adapt(VALUES.inputs[node.support], labels)
    row = values.meta_model.adapt(torch.tensor(VALUES.inputs[node.support]), labels[:, 0].tolist())
    assert torch.equal(flat(column.theta), flat(row.theta))
    predicted = column.predict(VALUES.inputs[node.query])
    error = float((predicted - torch.tensor(VALUES.labels[node.query])).square().mean())
    assert values.evaluation is not None
    assert values.evaluation.values[2][0] == pytest.approx(error)
    with pytest.raises(ModelError, match="has no classes"):
        column.classify(VALUES.inputs[node.query])


def test_class_names(run: Run) -> None:
    node = CLASSES.targets[0]
    inputs, numbers = CLASSES.inputs[node.support], CLASSES.labels[node.support]
    by_name = run.meta_model.adapt(inputs, [f"class {n}" for n in numbers])
    by_number = run.meta_model.adapt(inputs, torch.tensor(numbers))
    assert torch.equal(flat(by_name.theta), flat(by_number.theta))
    expected = [f"class {n}" for n in by_name.predict(inputs).argmax(1).tolist()]
    assert by_name.classify(inputs) == expected


def test_save_and_load(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    node = CLASSES.targets[0]
    adapted = run.meta_model.adapt(CLASSES.inputs[node.support], CLASSES.labels[node.support])
    adapted.save(file)
    read = MetaModel.load(file)
    assert torch.equal(flat(read.theta), flat(adapted.theta))
    assert list(read.theta) == list(adapted.theta)
    assert torch.equal(read.predict(CLASSES.inputs), adapted.predict(CLASSES.inputs))
    assert (read.task, read.adaptation, read.input_shape) == (
        adapted.task,
        adapted.adaptation,
        adapted.input_shape,
    )
    assert read.about == adapted.about
    again = tmp_path / "again.safetensors"
    read.save(again)
    assert again.read_bytes() == file.read_bytes()


def test_load_from_a_run_folder(run: Run) -> None:
    assert run.folder is not None
    read = MetaModel.load(str(run.folder))
    assert torch.equal(read.predict(CLASSES.inputs), run.meta_model.predict(CLASSES.inputs))
    module = read.module()
    scaled = read.scaling.apply(CLASSES.inputs, torch.float64)
    outputs = module.double()(scaled).softmax(1)
    assert torch.allclose(outputs, read.predict(CLASSES.inputs), atol=1e-5)


def test_the_head_is_still_the_head_after_loading(tmp_path: Path) -> None:
    """A file sorts names, and '10' comes before '2'."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        padding = [nn.Identity() for _ in range(9)]
        return nn.Sequential(nn.Linear(3, 3), *padding, nn.Linear(3, 3)).double()

    run = trained(model=network(), inner=Adaptation(0.4, scope="head"))
    run.meta_model.save(tmp_path / "m")
    read = MetaModel.load(tmp_path / "m", network=network())
    node = CLASSES.targets[0]
    samples = CLASSES.inputs[node.support], CLASSES.labels[node.support]
    expected, got = run.meta_model.adapt(*samples), read.adapt(*samples)
    assert torch.equal(got.theta["0.weight"], read.theta["0.weight"])
    assert torch.equal(flat(got.theta), flat(expected.theta))


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.zeros((2, 4)), [0, 1], r"samples have shape \(4,\), the model takes \(3,\)"),
        (3.0, [0], r"the model takes \(3,\)"),
        (np.full((2, 3), np.nan), [0, 1], "NaN, infinite"),
        (np.full((2, 3), np.inf), [0, 1], "NaN, infinite"),
        ([["a", "b", "c"]], [0], "non-numeric"),
        (np.zeros((2, 3)), [0], "2 samples and 1 labels"),
        (np.zeros((0, 3)), np.zeros(0, np.int64), "0 samples and 0 labels"),
        (np.zeros((2, 3)), [0, 3], r"knows no class '3': its classes are class 0"),
        (np.zeros((2, 3)), [-1, 0], r"knows no class '-1'"),
        (np.zeros((2, 3)), [0.0, 1.0], r"knows no class '0\.0'"),
        (np.zeros((2, 3)), [[0], [1]], r"labels have shape \(2, 1\): give one class"),
        (np.zeros((2, 3)), ["class 0", "cat"], r"knows no class 'cat': its classes are class 0"),
    ],
)
def test_samples_that_do_not_fit(run: Run, inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run.meta_model.adapt(inputs, labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((2, 3)), r"labels have shape \(2, 3\): give numbers, 1 per sample"),
        ([0.0, np.nan], "NaN or infinite values"),
        (["a", "b"], "give numbers"),
        (3.0, "give numbers"),
    ],
)
def test_values_that_do_not_fit(values: Run, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        values.meta_model.adapt(np.zeros((2, 2)), labels)


class Own(nn.Module):
    """Somebody's network, with a buffer and a frozen layer."""

    def __init__(self, shift: float = 0.5) -> None:
        super().__init__()
        self.frozen, self.head = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 3)
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(x)) + self.shift)


def own_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none") * 2


def test_a_network_of_your_own_is_given_again(tmp_path: Path) -> None:
    run = trained(model=Own(), loss=own_loss)
    run.meta_model.save(tmp_path / "m")
    with pytest.raises(RunFolderError, match=r"network of your own \(.*Own\).*network="):
        MetaModel.load(tmp_path / "m")
    with pytest.raises(RunFolderError, match=r"loss of your own \(.*own_loss\).*loss="):
        MetaModel.load(tmp_path / "m", network=Own())
    read = MetaModel.load(tmp_path / "m", network=Own(shift=9.0), loss=own_loss)
    expected = run.meta_model.predict(CLASSES.inputs)
    assert torch.allclose(read.predict(CLASSES.inputs), expected), "frozen parts travel too"
    scaled = read.scaling.apply(CLASSES.inputs, torch.float64)
    assert torch.allclose(read.module().double()(scaled).softmax(1), expected, atol=1e-5)
    with pytest.raises(RunFolderError, match="of another model"):
        MetaModel.load(tmp_path / "m", network=nn.Linear(3, 3), loss=own_loss)


def test_no_code_is_imported_because_a_file_names_it(run: Run, tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    marker = tmp_path / "ran"
    evil.write_text(f"open({str(marker)!r}, 'w')\ndef make(*_):\n    raise RuntimeError\n")
    run.meta_model.save(tmp_path / "m")
    tensors, text = read_tensors(tmp_path / "m", "model")
    facts = json.loads(text["fedmeta"])
    for changed in (
        {"network": {**facts["network"], "name": f"{evil}:make"}},
        {"loss": f"{evil}:make"},
        {"network": {"class": f"{evil}:make"}},
    ):
        write_tensors(tmp_path / "bad", tensors, {"fedmeta": json.dumps({**facts, **changed})})
        with pytest.raises(RunFolderError, match="of your own"):
            MetaModel.load(tmp_path / "bad")
    assert not marker.exists()


def test_files_that_are_no_meta_model(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no"):
        MetaModel.load(tmp_path / "none")
    with pytest.raises(RunFolderError, match="holds no run"):
        MetaModel.load(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "plain")
    with pytest.raises(RunFolderError, match="not a meta-model of fedmeta"):
        MetaModel.load(tmp_path / "plain")
    run.meta_model.save(tmp_path / "m")
    tensors, text = read_tensors(tmp_path / "m", "model")
    facts = json.loads(text["fedmeta"])
    for changed, message in [
        ({**facts, "format": 2}, "has format 2, this version reads 1"),
        ({k: v for k, v in facts.items() if k != "task"}, "not a complete meta-model"),
        ({**facts, "adaptation": {}}, "not a complete meta-model"),
        ({**facts, "network": {"nome": "mlp"}}, "not a complete meta-model"),
    ]:
        write_tensors(tmp_path / "bad", tensors, {"fedmeta": json.dumps(changed)})
        with pytest.raises(RunFolderError, match=message):
            MetaModel.load(tmp_path / "bad")
    spoilt = {**tensors, "theta/1.bias": torch.full_like(tensors["theta/1.bias"], torch.nan)}
    write_tensors(tmp_path / "bad", spoilt, text)
    with pytest.raises(RunFolderError, match="NaN or infinite parameters"):
        MetaModel.load(tmp_path / "bad")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text("{}")
    with pytest.raises(RunFolderError, match="it has not finished"):
        MetaModel.load(tmp_path / "run")
    whole = (tmp_path / "m").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunFolderError, match="damaged"):
        MetaModel.load(tmp_path / "cut")


def test_load_theta(run: Run, tmp_path: Path) -> None:
    assert run.folder is not None
    for place in (run.folder, run.folder / FILE):
        theta = load_theta(place)
        assert set(theta) == set(run.meta_model.theta)
        assert all(torch.equal(theta[n], leaf) for n, leaf in run.meta_model.theta.items())
    plain = {name: leaf + 1 for name, leaf in run.meta_model.theta.items()}
    save_file(plain, tmp_path / "plain.safetensors")
    read = load_theta(tmp_path / "plain.safetensors")
    assert all(torch.equal(read[name], leaf) for name, leaf in plain.items())
    begun = trained(start=read)
    assert not torch.equal(flat(begun.meta_model.theta), flat(run.meta_model.theta))


def test_other_tensors_are_named() -> None:
    ours = {"a": torch.zeros(2), "b": torch.zeros(1)}
    check_same_tensors(ours, dict(ours), "it")
    with pytest.raises(RunFolderError, match=r"'b' is absent there and \(1,\) here"):
        check_same_tensors(ours, {"a": torch.zeros(2)}, "it")
    with pytest.raises(RunFolderError, match=r"'c' is \(1,\) there and absent here"):
        check_same_tensors(ours, {**ours, "c": torch.zeros(1)}, "it")
    with pytest.raises(RunFolderError, match=r"'a' is \(3,\) there and \(2,\) here"):
        check_same_tensors(ours, {**ours, "a": torch.zeros(3)}, "it")


@pytest.mark.parametrize(
    "classes", [[1, 2, 4], [-1, 0, 7], ["01", "1", "x"], [False, True]], ids=str
)
def test_labels_are_called_what_they_were_in_training(classes: list[Any]) -> None:
    rng = np.random.default_rng(0)
    places = rng.integers(0, len(classes), 120)
    y, x = np.array(classes)[places], rng.normal(size=(120, 3)) + np.eye(3)[places] * 4
    federation = federate(x, y, node=np.arange(120) // 12)
    run = train(federation, nn.Linear(3, len(classes)), FedAvg(0.5), TrainingSettings(rounds=20))
    adapted = run.meta_model.adapt(x[:30], y[:30], steps=20)
    right = [
        name == str(label) for name, label in zip(adapted.classify(x), y.tolist(), strict=True)
    ]
    assert np.mean(right) > 0.9


def test_images_as_people_have_them() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80)
    images = (rng.integers(0, 100, size=(80, 6, 6)) + 100 * y[:, None, None]).astype(np.uint8)
    federation = federate(images, y, node=np.arange(80) // 10)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    model = train(federation, network, FedAvg(0.5), TrainingSettings(rounds=5)).meta_model
    assert model.input_shape == (1, 6, 6)
    flat_shape, full_shape = (model.adapt(x, y).predict(x) for x in (images, images[:, None]))
    assert torch.equal(flat_shape, full_shape)


class TestLocalLabels:
    """Of a model for three-way episodes, whose class numbers mean nothing."""

    WAYS = tuple(f"way {number}" for number in range(3))
    LOCAL = replace(CLASSES, task=Task("classification", 3, WAYS, local_labels=True))
    SUPPORT = CLASSES.inputs[CLASSES.targets[0].support]  # three samples

    @pytest.fixture
    def model(self) -> MetaModel:
        return trained(self.LOCAL).meta_model

    @pytest.mark.parametrize(
        ("labels", "numbers", "names"),
        [
            (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog", "way 2")),
            ([10, 9, 10], [1, 0, 1], ("9", "10", "way 2")),
            (np.array([2, 0, 1]), [2, 0, 1], ("0", "1", "2")),
            (["way 2", "way 0", "way 2"], [2, 0, 2], WAYS),
            (["way 1", "cat", "bat"], [1, 2, 0], ("bat", "way 1", "cat")),
        ],
        ids=str,
    )
    def test_a_device_has_names_of_its_own(
        self, model: MetaModel, labels: Any, numbers: list[int], names: tuple[str, ...]
    ) -> None:
        adapted = model.adapt(self.SUPPORT, labels)
        expected = model.adapt(self.SUPPORT, [f"way {number}" for number in numbers])
        assert adapted.task.class_names == names
        assert model.task.class_names == self.WAYS
        assert torch.equal(flat(adapted.theta), flat(expected.theta))
        found = adapted.predict(self.SUPPORT).argmax(1).tolist()
        assert adapted.classify(self.SUPPORT) == [names[number] for number in found]

    def test_names_that_are_known_stay(self, model: MetaModel) -> None:
        once = model.adapt(self.SUPPORT, ["dog", "cat", "dog"])
        again = once.adapt(self.SUPPORT, ["dog", "emu", "dog"])
        assert again.task.class_names == ("cat", "dog", "emu")
        others = again.adapt(self.SUPPORT, ["ant", "dog", "dog"])
        assert others.task.class_names == ("ant", "dog", "emu")

    def test_a_device_that_names_its_classes_may_decide(self, model: MetaModel) -> None:
        found = model.adapt(self.SUPPORT, ["dog", "cat", "dog"], decide=("one",))
        assert {*found.about["decision"]["losses"]} == {"none", "one"}

    def test_too_many_classes(self, model: MetaModel) -> None:
        inputs = CLASSES.inputs[:4]
        with pytest.raises(DataError, match="there are 4 classes, the model tells 3 apart"):
            model.adapt(inputs, ["a", "b", "c", "d"])

    def test_a_file_keeps_them(self, model: MetaModel, tmp_path: Path) -> None:
        model.adapt(self.SUPPORT, ["dog", "cat", "dog"]).save(tmp_path / "own.safetensors")
        task = MetaModel.load(tmp_path / "own.safetensors").task
        assert task == Task("classification", 3, ("cat", "dog", "way 2"), local_labels=True)

    def test_a_file_of_an_older_version_says_nothing_of_it(
        self, model: MetaModel, tmp_path: Path
    ) -> None:
        file = tmp_path / "older.safetensors"
        model.save(file)
        tensors, metadata = read_tensors(file, "meta-model")
        facts = json.loads(metadata["fedmeta"])
        del facts["task"]["local_labels"], facts["sha256"]
        write_tensors(file, tensors, {"fedmeta": json.dumps(facts)})
        older = MetaModel.load(file)
        assert older.task.local_labels is False
        with pytest.raises(DataError, match="knows no class 'dog'"):
            older.adapt(self.SUPPORT, ["dog", "cat", "dog"])
