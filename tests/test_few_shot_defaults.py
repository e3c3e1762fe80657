"""What episodes of images get where nothing else is asked for: conv4, turned classes, one scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmeta import (
    Adaptation,
    Augmentation,
    DataSettings,
    Execution,
    MetaModel,
    ModelSettings,
    fit_scaling,
    train,
)
from fedmeta.config.spec import RunSpec
from fedmeta.core import randomness
from fedmeta.core.errors import FedmetaError
from fedmeta.core.older_settings import as_begun
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.turned_classes import turned
from fedmeta.data.federation import Federation
from fedmeta.data.loading import deal_out
from fedmeta.data.readers.glyphs import draw_glyphs
from fedmeta.models.networks import build
from fedmeta.training.job import prepare

SMALL = ModelSettings(channels=(4, 4, 4, 4))


@pytest.fixture(scope="module")
def episodes() -> Federation:
    asked = DataSettings("glyphs", nodes=6, shots=1, queries=2, classes_per_node=3)
    return deal_out(draw_glyphs(seed=0, classes=20), asked, seed=0)


class TestTurnedClasses:
    def both(self) -> NodeData:
        images = torch.arange(6 * 9.0).reshape(6, 1, 3, 3)
        labels = torch.tensor([0, 1, 2, 2, 1, 0])
        return NodeData(
            *(Samples(images[part], labels[part], torch.ones(3)) for part in ([0, 1, 2], [3, 4, 5]))
        )

    def test_each_is_one_of_the_eight_positions_and_its_class_shares_it(self) -> None:
        data = self.both()
        seen = set()
        for seed in range(60):
            new = turned(data, 3, randomness.key(seed))
            places = {}
            for before, after in zip(data, new, strict=True):
                assert torch.equal(before.labels, after.labels)
                for image, found, label in zip(
                    before.inputs[:, 0], after.inputs[:, 0], before.labels.tolist(), strict=True
                ):
                    possible = [
                        turn.rot90(quarter) for turn in (image, image.T) for quarter in range(4)
                    ]
                    (place,) = [n for n, each in enumerate(possible) if torch.equal(each, found)]
                    assert places.setdefault(label, place) == place
            seen.add(tuple(places[label] for label in range(3)))
        assert {place for places in seen for place in places} == set(range(8))
        assert len(seen) > 40  # classes draw for themselves

    def test_one_node_or_many(self) -> None:
        data, keys = self.both(), torch.stack([randomness.key(n) for n in range(3)])
        many = NodeData(*(Samples(*(x.expand(3, *x.shape) for x in part)) for part in data))
        found = torch.func.vmap(lambda node, key: turned(node, 3, key))(many, keys)
        for number, key in enumerate(keys):
            alone = turned(data, 3, key)
            assert torch.equal(found.query.inputs[number], alone.query.inputs)

    def test_where_it_is_done(self, episodes: Federation) -> None:
        square, wide = Augmentation().resolved((1, 28, 28)), Augmentation().resolved((1, 28, 30))
        assert square.turns(episodes.task) == 3
        assert wide.turns(episodes.task) == Augmentation().resolved((3, 28, 28)).turns(
            episodes.task
        )
        assert wide.turns(episodes.task) == 0
        assert square.turns(replace(episodes.task, local_labels=False)) == 0
        with pytest.raises(FedmetaError, match="only square images turn"):
            Augmentation(turn_classes=True).check((1, 4, 5), "x")


class TestConv4:
    def test_four_blocks_of_64_as_the_literature_has_them(self) -> None:
        model = build(ModelSettings("conv4"), (1, 28, 28), 5, seed=0)
        kinds = [type(layer) for layer in model.modules()]
        assert kinds.count(nn.Conv2d) == kinds.count(nn.GroupNorm) == 4
        assert [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)] == [64] * 4
        x = torch.randn(3, 1, 28, 28)
        assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)  # no batch coupling

    def test_large_drawings_are_averaged_down_and_photographs_are_not(self) -> None:
        first = next(iter(build(SMALL_CONV, (1, 105, 105), 5, seed=0).children()))
        assert isinstance(first, nn.AvgPool2d)
        assert first.kernel_size == 3
        assert (
            build(SMALL_CONV, (1, 105, 105), 5, seed=0)(torch.zeros(2, 1, 105, 105)).shape[1] == 5
        )
        assert isinstance(next(iter(build(SMALL_CONV, (3, 84, 84), 5, seed=0))), nn.Conv2d)

    def test_it_needs_images(self) -> None:
        with pytest.raises(FedmetaError, match='use model "cnn" for series'):
            build(ModelSettings("conv4"), (6, 128), 5, seed=0)


SMALL_CONV = replace(SMALL, name="conv4")


def test_episodes_of_images_get_them_without_options(episodes: Federation) -> None:
    runs = [
        train(episodes, SMALL, rounds=2, execution=Execution(path=path, dtype="float64"))
        for path in ("batched", "loop")
    ]
    settings = runs[0].summary["settings"]
    assert settings["model"]["name"] == "conv4"
    assert settings["augmentation"]["turn_classes"] is True
    assert settings["algorithm"]["resplit"] == "classes"
    first, second = (run.meta_model for run in runs)
    assert first.scaling.mean.size == 1  # turned images want one scale for all pixels
    assert all(torch.allclose(first.theta[n], leaf) for n, leaf in second.theta.items())
    still = Augmentation(turn_classes=False)
    other = train(
        episodes, SMALL, rounds=2, execution=Execution(dtype="float64"), augmentation=still
    ).meta_model
    assert any(not torch.allclose(other.theta[n], leaf) for n, leaf in first.theta.items())


def test_a_linear_head_adapts_by_class_means(episodes: Federation) -> None:
    def rule(spec: RunSpec, federation: Federation = episodes) -> Adaptation:
        return prepare(replace(spec, data=None), federation).algorithm.inner

    spec = RunSpec.from_dict({"model": {"name": "mlp", "hidden": [4]}})
    found = rule(spec)
    assert (found.method, found.step_size, found.scope) == ("prototypes", 4.0, "head")
    asked = RunSpec.from_dict({"model": {"name": "mlp"}, "inner": {"step_size": 0.1}})
    assert (rule(asked).method, rule(asked).step_size) == ("gradient", 0.1)
    assert rule(RunSpec.from_dict({"algorithm": "fedmeta"})).method == "gradient"
    first_order = {"algorithms": {"admm-fedmeta": {"curvature": "none"}}}
    assert rule(RunSpec.from_dict(first_order)).method == "gradient"
    one_task = replace(episodes, task=replace(episodes.task, local_labels=False))
    assert rule(spec, one_task).method == "gradient"
    # What follows the head, or stands in its place, has no class means.
    other = nn.Sequential(nn.Flatten(), nn.Linear(784, 3), nn.LogSoftmax(dim=1))
    assert rule(RunSpec(data=None, model=other)).method == "gradient"
    assert rule(RunSpec(data=None, model=nn.Sequential(*other[:2]))).method == "prototypes"


def test_a_run_begun_with_gradient_steps_goes_on_with_them(episodes: Federation) -> None:
    begun = {"algorithm": {"inner": {"step_size": 0.3, "scope": "head"}}}
    spec = RunSpec.from_dict(as_begun(begun, "admm-fedmeta"))
    job = prepare(replace(spec, data=None, model=SMALL), episodes)
    assert job.algorithm.inner.method == "gradient"
    assert "method" not in job.settings["algorithm"]["inner"]  # as it stored them


def test_other_data_are_as_they_were(episodes: Federation) -> None:
    task = replace(episodes.task, local_labels=False)
    run = train(replace(episodes, task=task), replace(SMALL, channels=(4,)), rounds=1)
    assert run.summary["settings"]["model"]["name"] == "auto"
    assert "turn_classes" not in run.summary["settings"]["augmentation"]
    assert run.meta_model.scaling.mean.shape == (1, 28, 28)
    assert DataSettings().scaling_kind == "per-feature"
    assert DataSettings("digits", partition="episodes").scaling_kind == "per-channel"
    assert DataSettings("glyphs", scaling="per-feature").scaling_kind == "per-feature"


def test_black_on_white_is_white_on_black(episodes: Federation) -> None:
    """Scaled, the two differ in sign alone, and a shift brings in neither ink nor paper."""
    negative = replace(episodes, inputs=255 - episodes.inputs)
    one, other = (fit_scaling(data) for data in (episodes, negative))
    few = episodes.inputs[:4]
    scaled = one.apply(few, torch.float64), other.apply(255 - few, torch.float64)
    assert torch.allclose(scaled[0], -scaled[1])


def test_a_device_with_labels_of_its_own(episodes: Federation, tmp_path) -> None:
    run = train(episodes, SMALL, rounds=1, folder=tmp_path / "run")
    model = MetaModel.load(tmp_path / "run")
    node = episodes.targets[0]
    x, y = episodes.inputs[node.support], episodes.labels[node.support]
    for names in (y, np.array(["cup", "key", "pen"])[y]):
        adapted = model.adapt(x, names)
        assert set(adapted.classify(x)) <= {str(each) for each in names}
    assert run.meta_model.theta.keys() == model.theta.keys()
