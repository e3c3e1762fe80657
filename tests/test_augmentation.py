"""Flips and shifts: what is drawn, the same on every path, and never outside of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.runs import convolutional, seeded
from fedmeta.algorithms import (
    ADMMFedMeta,
    Algorithm,
    Centralised,
    FedAvg,
    FedMeta,
    LocalOnly,
    PerFedAvg,
    PlatformOptimizer,
    Reptile,
)
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core import objective, randomness
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import Tree
from fedmeta.data import unpacked
from fedmeta.data.augmentation import Augmentation, augmenting
from fedmeta.engine import recording
from fedmeta.engine.cohort import node_keys
from fedmeta.models.losses import cross_entropy
from fedmeta.training.run import Run
from fedmeta.training.train import train
from problems import LAYOUTS, PLAIN, classification, double, flat, job_of

BOTH = Augmentation(flip=True, shift=1)
IMAGES = classification(shape=(1, 5, 5))
FEW = TrainingSettings(rounds=3, evaluate_every=0, evaluation_steps=(1,))
INNER = Adaptation(0.2)
TRAINING: dict[str, Algorithm] = {
    "admm": ADMMFedMeta(INNER, 0.8, local_steps=2),
    "admm-difference": ADMMFedMeta(INNER, 0.8, curvature="finite-difference"),
    "admm-batches": ADMMFedMeta(Adaptation(0.2, steps=2, batch_size=2), 0.8),
    "fedavg": FedAvg(0.1, local_steps=2, batch_size=3),
    "per-fedavg": PerFedAvg(INNER, 0.1, local_steps=2),
    "fedmeta": FedMeta(INNER, server=PlatformOptimizer("adam", 0.05)),
    "reptile": Reptile(0.1, local_steps=2),
    "centralised": Centralised(server=PlatformOptimizer("adam", 0.05)),
}


def trained(
    algorithm: Algorithm = TRAINING["admm"],
    augmentation: Augmentation = BOTH,
    layout: str = "batched-3",
    settings: TrainingSettings = FEW,
    network: Callable[[], nn.Module] = convolutional,
    **options: Any,
) -> Run:
    options.setdefault("execution", replace(LAYOUTS[layout], threads=1))
    return train(
        IMAGES, network(), algorithm, settings, augmentation=augmentation, scaling=PLAIN, **options
    )


def perceptron() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(25, 3)))


def theta_of(run: Run) -> Tensor:
    return flat(run.meta_model.theta)


def by_hand(image: Tensor, flipped: bool, down: int, right: int) -> Tensor:
    """One image (c, h, w), pixel by pixel."""
    result = torch.zeros_like(image)
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            to = row + down, column + right
            if 0 <= to[0] < height and 0 <= to[1] < width:
                result[:, to[0], to[1]] = image[:, row, width - 1 - column if flipped else column]
    return result


class TestDraws:
    images = torch.arange(1.0, 1 + 2000 * 2 * 3 * 4).reshape(2000, 2, 3, 4)

    @pytest.mark.parametrize(
        "augmentation",
        [
            Augmentation(True, 0),
            Augmentation(False, 1),
            Augmentation(False, 2),
            Augmentation(True, 2),
        ],
    )
    def test_every_change_comes_equally_often(self, augmentation: Augmentation) -> None:
        changed = augmentation(self.images, randomness.key(3))
        flips = (False, True) if augmentation.flip else (False,)
        offsets = range(-augmentation.reach, augmentation.reach + 1)
        counts = []
        left = torch.ones(len(self.images), dtype=torch.bool)
        for flipped in flips:
            for down in offsets:
                for right in offsets:
                    wanted = torch.func.vmap(
                        lambda image, f=flipped, d=down, r=right: _changed(image, f, d, r)
                    )(self.images)
                    assert torch.equal(wanted[0], by_hand(self.images[0], flipped, down, right))
                    same = (changed == wanted).flatten(1).all(dim=1)
                    counts.append(int(same.sum()))
                    left &= ~same
        assert not left.any()  # every image was changed in one of these ways
        share = len(self.images) / len(counts)
        assert all(abs(count - share) < 5 * share**0.5 for count in counts)

    def test_images_do_not_share_a_draw(self) -> None:
        same = torch.ones(50, 1, 5, 5) * torch.arange(25.0).reshape(5, 5)
        changed = Augmentation(True, 2)(same, randomness.key(0))
        assert len({tuple(image.flatten().tolist()) for image in changed}) > 20

    def test_a_key_gives_one_draw_and_another_key_another(self) -> None:
        some = self.images[:40]
        first, again, other = (BOTH(some, randomness.key(seed)) for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_padding_and_batching_change_no_draw(self) -> None:
        keys = torch.stack([randomness.key(seed) for seed in range(5)])
        batch = self.images[:35].reshape(5, 7, 2, 3, 4)
        together = torch.func.vmap(BOTH)(batch, keys)
        for node, key in enumerate(keys):
            for count in range(1, 8):
                alone = BOTH(batch[node, :count], key)
                assert torch.equal(together[node, :count], alone)

    def test_dropout_does_not_look_at_the_same_numbers(self) -> None:
        key = randomness.key(0)
        images = torch.arange(64.0).reshape(64, 1, 1, 1).expand(64, 1, 1, 2) + torch.tensor(
            [0, 0.5]
        )
        flipped = Augmentation(True)(images, key)[:, 0, 0, 0] % 1 > 0
        for place in range(3):  # what a dropout layer would draw for these samples
            mask = (
                randomness.uniform(randomness.fold(key, place), 3 * 64).reshape(64, 3)[:, 0] < 0.5
            )
            assert not torch.equal(flipped, mask)

    def test_what_is_not_finite_is_not_smeared(self) -> None:
        image = torch.full((1, 1, 3, 3), torch.nan)
        changed = Augmentation(shift=2)(image.expand(20, 1, 3, 3), randomness.key(0))
        assert set(changed[~changed.isnan()].tolist()) == {0.0}


def _changed(image: Tensor, flipped: bool, down: int, right: int) -> Tensor:
    """The same as `by_hand` by slices of a padded image."""
    _, height, width = image.shape
    padded = nn.functional.pad(image.flip(-1) if flipped else image, (4, 4, 4, 4))
    return padded[:, 4 - down : 4 - down + height, 4 - right : 4 - right + width]


class TestSettings:
    @pytest.mark.parametrize("fields", [{"shift": -1}, {"shift": 1.5}, {"flip": 1}])
    def test_nonsense_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(SettingError, match=f"augmentation.{next(iter(fields))} is"):
            Augmentation(**fields)

    @pytest.mark.parametrize("augmentation", [Augmentation(True), Augmentation(shift=1)])
    @pytest.mark.parametrize("shape", [(3,), (5, 5), (1, 2, 5, 5)])
    def test_what_is_no_image(self, shape: tuple[int, ...], augmentation: Augmentation) -> None:
        with pytest.raises(DataError, match=r"samples of toy classes have shape .* only images"):
            train(
                classification(shape=shape),
                nn.Flatten(),
                FedAvg(),
                FEW,
                augmentation=augmentation,
            )
        Augmentation().check(shape, "anything")

    def test_shifts_beyond_the_image(self) -> None:
        Augmentation(shift=3).check((1, 4, 5), "x")
        with pytest.raises(DataError, match=r"augmentation.shift is 4, but images of x have 4 × 5"):
            Augmentation(shift=4).check((1, 4, 5), "x")

    def test_off_is_as_if_there_were_none(self) -> None:
        job = job_of(IMAGES, convolutional(), FedAvg(), FEW, augmentation=Augmentation())
        assert not job.layout.objective.draws
        assert job_of(
            IMAGES, convolutional(), FedAvg(), FEW, augmentation=BOTH
        ).layout.objective.draws
        plain = train(
            IMAGES,
            convolutional(),
            TRAINING["admm"],
            FEW,
            scaling=PLAIN,
            execution=replace(LAYOUTS["batched-3"], threads=1),
        )
        assert torch.equal(theta_of(plain), theta_of(trained(augmentation=Augmentation())))
        assert not torch.equal(theta_of(plain), theta_of(trained()))
        assert plain.summary["settings"]["augmentation"] == {"flip": False, "shift": 0}
        assert trained().summary["settings"]["augmentation"] == {"flip": True, "shift": 1}


class TestTraining:
    @pytest.mark.parametrize("name", TRAINING)
    def test_all_paths_see_the_same_images(self, name: str) -> None:
        """Nodes have different sizes, so there is padding wherever they come in batches."""
        results = [theta_of(trained(TRAINING[name], layout=layout)) for layout in LAYOUTS]
        plain = theta_of(trained(TRAINING[name], Augmentation()))
        assert float((results[0] - plain).abs().max()) > 1e-5
        for result in results[1:]:
            assert float((result - results[0]).abs().max()) < 1e-12

    @pytest.mark.parametrize("name", ["admm", "admm-difference", "fedavg"])
    def test_recorded_to_the_bit(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        traced = []
        trace = recording._trace
        monkeypatch.setattr(recording, "_trace", lambda *a, **k: traced.append(a) or trace(*a, **k))
        results = []
        for patience in (float("inf"), -1):
            monkeypatch.setattr(recording, "_PATIENCE", patience)
            results.append(theta_of(trained(TRAINING[name], network=perceptron)))
            assert bool(traced) == (patience < 0)
        assert torch.equal(*results)

    def test_a_step_by_hand(self) -> None:
        settings = replace(FEW, rounds=1, seed=7)
        data = IMAGES.with_nodes([IMAGES.sources[1], *IMAGES.targets])
        run = train(
            data,
            convolutional(),
            FedAvg(0.3),
            settings,
            augmentation=BOTH,
            scaling=PLAIN,
            execution=LAYOUTS["loop"],
        )
        node = data.sources[0]
        parts = unpacked(data, node, PLAIN, torch.float64)
        samples = objective.union(parts)
        (key,) = randomness.fold(node_keys([node], 7), 1)
        pass_key = randomness.fold(randomness.fold(key, Purpose.SUPPORT), 0)
        images = BOTH(samples.inputs, pass_key)
        assert not torch.equal(images, samples.inputs)
        network = convolutional()
        cross_entropy(network(images), samples.labels).mean().backward()
        stepped = torch.cat([(p - 0.3 * p.grad).flatten() for p in network.parameters()])
        assert float((theta_of(run) - stepped.detach()).abs().max()) < 1e-14

    def test_fresh_in_every_round_and_never_for_targets(self) -> None:
        """A model that does not move sees other images, but is judged on the same ones."""
        still = FedAvg(1e-30, inner=Adaptation(0.5))
        plain, run = trained(still, Augmentation()), trained(still)
        before, after = ([r["local_loss"] for r in each.history] for each in (plain, run))
        assert len(set(before)) == 1
        assert len({*before, *after}) == 4
        assert run.evaluation == plain.evaluation
        adapted = trained(FedAvg(1e-30, inner=Adaptation(0.5, batch_size=2)))
        assert adapted.evaluation is not None
        assert (
            adapted.evaluation
            == trained(
                FedAvg(1e-30, inner=Adaptation(0.5, batch_size=2)), Augmentation()
            ).evaluation
        )

    def test_local_steps_draw_anew(self) -> None:
        seen: list[Tensor] = []

        def predict(theta: Tree, inputs: Tensor, key: Tensor | None) -> Tensor:
            seen.append(inputs.detach().clone())
            return inputs.flatten(1)[:, :3] * theta["w"]

        samples = unpacked(IMAGES, IMAGES.sources[0], PLAIN, torch.float64)
        noisy = Objective(augmenting(predict, Augmentation(shift=2)), cross_entropy)
        theta = {"w": torch.ones((), dtype=torch.float64)}
        objective.local_descent(noisy, theta, samples, 3, 0.1, None, randomness.key(0))
        assert len(seen) == 3
        assert not torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[1], seen[2])

    def test_with_dropout(self) -> None:
        def network() -> nn.Module:
            return seeded(
                lambda: nn.Sequential(nn.Flatten(), nn.Linear(25, 6), nn.Dropout(), nn.Linear(6, 3))
            )

        results = [
            theta_of(trained(layout=layout, network=network)) for layout in ("batched-3", "loop")
        ]
        assert float((results[0] - results[1]).abs().max()) < 1e-12


class TestCurvature:
    """A meta-gradient differentiates through one draw of images, whatever it needs them for."""

    model = double(convolutional())
    data = unpacked(IMAGES, IMAGES.sources[0], PLAIN, torch.float64)
    one = torch.ones((), dtype=torch.float64)
    facts = Facts(one, one, one, one, randomness.key(5))

    def gradient(self, curvature: Any, **options: Any) -> Tree:
        rule = MetaGradient(Adaptation(0.5, steps=2), curvature, **options)
        noisy = Objective(augmenting(self.model, BOTH), cross_entropy)
        return meta_gradient(noisy, rule, self.model.theta, self.data, self.facts)[0]

    def test_exact_is_that_of_the_images_drawn(self) -> None:
        key = self.facts.key
        support, query = self.data.support, self.data.query
        steps = [
            BOTH(support.inputs, randomness.fold(randomness.fold(key, Purpose.SUPPORT), step))
            for step in range(2)
        ]
        last = BOTH(query.inputs, randomness.fold(randomness.fold(key, Purpose.QUERY), 0))
        assert not torch.equal(steps[0], steps[1])
        theta = {n: leaf.clone().requires_grad_() for n, leaf in self.model.theta.items()}
        phi = dict(theta)
        for images in steps:
            loss = cross_entropy(self.model(phi, images), support.labels).mean()
            gradients = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
            phi = {n: p - 0.5 * g for (n, p), g in zip(phi.items(), gradients, strict=True)}
        loss = cross_entropy(self.model(phi, last), query.labels).mean()
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(theta.values()))])
        assert float((flat(self.gradient("exact")) - wanted).abs().max()) < 1e-13

    def test_differences_compare_gradients_on_the_same_images(self) -> None:
        small = self.gradient("finite-difference", difference=lambda facts: 1e-5 * facts.round)
        exact, none = self.gradient("exact"), self.gradient("none")
        far = float((flat(exact) - flat(none)).abs().max())
        assert float((flat(small) - flat(exact)).abs().max()) < 1e-4 * far


def test_padded_samples_of_a_node_are_those_without_padding() -> None:
    """The whole loss of a node, with padding at the end as engines have it."""
    noisy = Objective(augmenting(TestCurvature.model, BOTH), cross_entropy)
    support = TestCurvature.data.support
    padded = Samples(*(torch.cat([part, part[:1].repeat_interleave(3, 0)]) for part in support))
    padded = padded._replace(mask=torch.cat([support.mask, torch.zeros(3).double()]))
    key, theta = randomness.key(1), TestCurvature.model.theta
    values = [noisy.value(theta, each, key) for each in (support, padded)]
    assert float(values[0] - values[1]) == pytest.approx(0, abs=1e-14)
    joined = objective.union(NodeData(padded, TestCurvature.data.query))
    plain = objective.union(TestCurvature.data)
    values = [noisy.value(theta, each, key) for each in (plain, joined)]
    assert float(values[0] - values[1]) == pytest.approx(0, abs=1e-14)


def test_single_precision_and_bfloat16_run() -> None:
    for precision in ("full", "bf16"):
        execution = Execution(path="batched", precision=precision, threads=1)
        run = train(
            IMAGES, convolutional().float(), FedAvg(), FEW, augmentation=BOTH, execution=execution
        )
        assert theta_of(run).isfinite().all()


def test_local_only_trains_nothing_and_so_augments_nothing() -> None:
    runs = [
        trained(LocalOnly(0.1, steps=2), augmentation) for augmentation in (BOTH, Augmentation())
    ]
    assert runs[0].evaluation == runs[1].evaluation
