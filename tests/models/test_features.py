"""A frozen body is computed once per sample, and nothing but the time it takes tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmeta import ADMMFedMeta, Augmentation, Execution, FedAvg, MetaModel, PerFedAvg, train
from fedmeta.models.features import cut_off
from fedmeta.models.functional import functionalise
from models.zoo import WORKING, Calling, frozen, mlp

FROZEN = [name for name in WORKING if name.startswith("frozen backbone")]
ONCE, EVERY_PASS = (
    Execution(dtype="float64", frozen=when)  # type: ignore[arg-type]
    for when in ("once", "every-pass")
)


class Counting(nn.Module):
    """Counts the samples that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.passed = nn.Linear(4, 8), [0]

    def forward(self, x: Tensor) -> Tensor:
        self.passed[0] += len(x)
        return self.inner(x)


@pytest.mark.parametrize("algorithm", [ADMMFedMeta(), PerFedAvg(), FedAvg(local_steps=2)], ids=str)
@pytest.mark.parametrize("name", FROZEN)
def test_the_same_model(name: str, algorithm: Any) -> None:
    animal = WORKING[name]
    data = animal.federation()
    torch.manual_seed(0)
    network = animal.make()
    runs = [train(data, network, algorithm, rounds=3, execution=how) for how in (ONCE, EVERY_PASS)]
    assert [run.summary["settings"]["execution"]["frozen"] for run in runs] == [
        "once",
        "every-pass",
    ]
    once, every = (run.meta_model for run in runs)
    assert list(once.theta) == ["head.weight", "head.bias"]
    assert all(torch.allclose(leaf, every.theta[key]) for key, leaf in once.theta.items())
    assert runs[0].metric(1) == pytest.approx(runs[1].metric(1))
    samples = data.inputs[:5]
    assert torch.allclose(once.predict(samples), every.predict(samples))  # of raw samples


def test_samples_pass_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "__deepcopy__", lambda self, _: self, raising=False)
    body = Counting().eval().requires_grad_(False)
    data = WORKING["perceptron"].federation()
    passed = []
    for rounds in (1, 6):
        network = frozen(body, 8)
        before = body.passed[0]
        train(data, network, rounds=rounds)
        passed.append(body.passed[0] - before)
    assert passed[1] < passed[0]  # the second finds them: runs share features


def test_a_run_that_is_stored_and_read(tmp_path: Any) -> None:
    animal = WORKING[FROZEN[0]]
    data, network = animal.federation(), animal.make()
    run = train(data, network, rounds=2, folder=tmp_path / "run")
    again = MetaModel.load(tmp_path / "run", network)
    assert torch.equal(again.predict(data.inputs[:4]), run.meta_model.predict(data.inputs[:4]))
    longer = train(data, network, rounds=4)
    resumed = train(data, network, rounds=4, folder=tmp_path / "run", resume=True)
    for key, leaf in longer.meta_model.theta.items():
        assert torch.equal(leaf, resumed.meta_model.theta[key])


@pytest.mark.parametrize(
    "network",
    [
        mlp(4, 8, 3),
        Calling(  # the rest looks at the inputs too
            lambda me, x: me.head(torch.cat([me.body(x), x], 1)),
            body=nn.Linear(4, 8).requires_grad_(False),
            head=nn.Linear(12, 3),
        ),
        Calling(  # the body does not see the inputs as they are
            lambda me, x: me.head(me.body(2 * x)),
            body=nn.Linear(4, 8).requires_grad_(False),
            head=nn.Linear(8, 3),
        ),
        nn.Sequential(  # it draws at random
            nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 8)).requires_grad_(False), nn.Linear(8, 3)
        ),
    ],
    ids=["nothing is frozen", "inputs beside features", "inputs changed", "random"],
)
def test_what_is_not_cut_off(network: nn.Module) -> None:
    taken = functionalise(network)
    assert cut_off(taken, torch.randn(3, 4)) is None


def test_images_that_change_are_not_kept() -> None:
    animal = WORKING["frozen backbone, BatchNorm and dropout"]
    data, network = animal.federation(), animal.make()
    run = train(data, network, rounds=1, augmentation=Augmentation(shift=1))
    assert run.summary["settings"]["execution"]["frozen"] == "every-pass"
