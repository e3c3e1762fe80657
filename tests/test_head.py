"""The head is what produces the output, wherever it is declared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from fedmeta import ADMMFedMeta, FedMeta, MetaModel, ModelSettings, Run, TrainingSettings, train
from fedmeta.config.spec import RunSpec
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import Federation
from fedmeta.fleet.plan import Plan
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.functional import functionalise
from fedmeta.models.head import Head, head_of
from fedmeta.models.networks import build
from fedmeta.training import job as jobs
from fedmeta.training.job import prepare
from problems import DOUBLE, classification, job_of

Linear = nn.Linear


class Net(nn.Module):
    """Parts in the order of their declaration, and what is done with them."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.call(self, inputs)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape))


def tied_language_model() -> nn.Module:
    net = Net(
        lambda s, x: s.out(torch.tanh(s.mix(s.words(x.long()).mean(1)))),
        words=nn.Embedding(5, 3),
        mix=Linear(3, 3),
        out=Linear(3, 5),
    )
    net.out.weight = net.words.weight
    return net


def frozen_head() -> nn.Module:
    net = nn.Sequential(Linear(4, 3), nn.ReLU(), Linear(3, 3), nn.ReLU(), Linear(3, 2))
    net[4].requires_grad_(False)
    return net


def residual(s: Any, x: Tensor) -> Tensor:
    features = torch.relu(s.body(x))
    return features + s.out(features)


def steps(s: Any, x: Tensor) -> Tensor:
    return s.body(x).unflatten(1, (3, 2))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "plain": (
        lambda: nn.Sequential(Linear(4, 3), nn.ReLU(), Linear(3, 2)),
        {"2.weight", "2.bias"},
    ),
    "head declared first": (
        lambda: Net(lambda s, x: s.out(s.body(x).relu()), out=Linear(3, 2), body=Linear(4, 3)),
        {"out.weight", "out.bias"},
    ),
    "LayerNorm after the head": (
        lambda: nn.Sequential(Linear(4, 3), nn.ReLU(), Linear(3, 2), nn.LayerNorm(2)),
        {"2.weight", "2.bias"},
    ),
    "LayerNorm declared last, used before": (
        lambda: Net(
            lambda s, x: s.out(s.norm(s.body(x))),
            body=Linear(4, 3),
            out=Linear(3, 2),
            norm=nn.LayerNorm(3),
        ),
        {"out.weight", "out.bias"},
    ),
    "tied language model": (tied_language_model, {"words.weight", "out.bias"}),
    "sum of two heads": (
        lambda: Net(
            lambda s, x: s.deep(s.body(x).relu()) + s.wide(x),
            wide=Linear(4, 2),
            deep=Linear(3, 2),
            body=Linear(4, 3),
        ),
        {"wide.weight", "wide.bias", "deep.weight", "deep.bias"},
    ),
    "two heads side by side": (
        lambda: Net(
            lambda s, x: torch.cat([s.one(s.body(x)), s.two(s.body(x))], 1),
            one=Linear(3, 1),
            two=Linear(3, 1),
            body=Linear(4, 3),
        ),
        {"one.weight", "one.bias", "two.weight", "two.bias"},
    ),
    "one parameter": (lambda: Net(lambda s, x: x @ s.w, w=weight(4, 2)), {"w"}),
    "raw parameters": (
        lambda: Net(
            lambda s, x: (x @ s.first).relu() @ s.last + s.shift,
            last=weight(3, 2),
            shift=weight(2),
            first=weight(4, 3),
        ),
        {"last", "shift"},
    ),
    "a product written out": (
        lambda: Net(
            lambda s, x: (s.body(x).unsqueeze(-1) * s.w).sum(1), w=weight(3, 2), body=Linear(4, 3)
        ),
        {"w"},
    ),
    "weight norm": (
        lambda: Net(
            lambda s, x: s.out(s.body(x)),
            out=parametrizations.weight_norm(Linear(3, 2)),
            body=Linear(4, 3),
        ),
        {
            "out.bias",
            "out.parametrizations.weight.original0",
            "out.parametrizations.weight.original1",
        },
    ),
    "frozen head": (frozen_head, {"2.weight", "2.bias"}),
    "attention": (
        lambda: Net(
            lambda s, x: s.mix(*[steps(s, x)] * 3)[0].mean(1),
            mix=nn.MultiheadAttention(2, 1, batch_first=True),
            body=Linear(4, 6),
        ),
        {"mix.out_proj.weight", "mix.out_proj.bias"},
    ),
    "GRU of two layers": (
        lambda: Net(
            lambda s, x: s.mix(steps(s, x))[0][:, -1],
            mix=nn.GRU(2, 2, 2, batch_first=True),
            body=Linear(4, 6),
        ),
        {"mix.weight_ih_l1", "mix.weight_hh_l1", "mix.bias_ih_l1", "mix.bias_hh_l1"},
    ),
    "a residual around the head": (
        lambda: Net(residual, out=Linear(2, 2), body=Linear(4, 2)),
        {"out.weight", "out.bias"},
    ),
    "1 × 1 convolution, pooled": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)),
            nn.Conv2d(1, 3, 2, padding=1),
            nn.ReLU(),
            nn.Conv2d(3, 2, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        {"3.weight", "3.bias"},
    ),
    "bilinear": (
        lambda: Net(
            lambda s, x: s.out(s.one(x), s.two(x)),
            out=nn.Bilinear(3, 2, 2),
            one=Linear(4, 3),
            two=Linear(4, 2),
        ),
        {"out.weight", "out.bias"},
    ),
    "cosines under a temperature": (
        lambda: Net(
            lambda s, x: s.heat * s.out(functional.normalize(s.body(x))),
            out=Linear(3, 2, bias=False),
            heat=nn.Parameter(torch.ones(())),
            body=Linear(4, 3),
        ),
        {"out.weight"},
    ),
    "distances to prototypes": (
        lambda: Net(
            lambda s, x: -torch.cdist(s.body(x), s.places), places=weight(2, 3), body=Linear(4, 3)
        ),
        {"places"},
    ),
    "samples that become whole numbers": (
        lambda: Net(
            lambda s, x: s.out(s.body(functional.one_hot(x[:, 0].long(), 5).float()).relu()),
            out=Linear(3, 2),
            body=Linear(5, 3),
        ),
        {"out.weight", "out.bias"},
    ),
    "scales alone": (
        lambda: Net(lambda s, x: x * s.scale + s.shift, scale=weight(4), shift=weight(4)),
        {"scale", "shift"},
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_head_of_a_network(name: str) -> None:
    make, expected = NETWORKS[name]
    model = functionalise(make())
    found = head_of(model, torch.zeros(2, 4))
    assert set(found.names) == expected
    assert list(found.names) == [each for each in model.theta if each in expected]
    assert "declared last" not in found.note
    assert not any(leaf.requires_grad for leaf in model.theta.values())


def test_what_a_reader_should_know_of_it() -> None:
    def note(net: nn.Module) -> str:
        return head_of(functionalise(net), torch.zeros(2, 4)).note

    assert note(nn.Sequential(Linear(4, 2))) == ""
    assert note(tied_language_model()).startswith("words.weight is tied")
    assert note(frozen_head()) == "what follows it is frozen"


def test_where_nothing_is_seen_it_is_the_module_declared_last() -> None:
    def failing(s: Any, x: Tensor) -> Tensor:
        raise ArithmeticError

    for call, why in ((failing, "ArithmeticError"), (lambda s, x: s.one(x).detach(), "autograd")):
        found = head_of(
            functionalise(Net(call, one=Linear(4, 3), two=Linear(3, 2))), torch.zeros(2, 4)
        )
        assert found.names == ("two.weight", "two.bias")
        assert found.note.startswith("the module declared last")
        assert why in found.note


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (ModelSettings("linear"), (6,)),
        (ModelSettings("mlp", hidden=(5, 4)), (6,)),
        (ModelSettings("cnn", channels=(4, 6)), (1, 16, 16)),
        (ModelSettings("cnn", channels=(4, 6), last_pooling="average"), (3, 16, 16)),
        (ModelSettings("cnn"), (6, 128)),
    ],
)
def test_built_in_networks_have_it_last_so_older_runs_go_on(
    settings: ModelSettings, shape: tuple[int, ...]
) -> None:
    model = functionalise(build(settings, shape, 3, seed=0))
    found = head_of(model, torch.zeros(2, *shape))
    assert set(found.names) == Adaptation(scope="head").moves(model.theta)
    assert found.note == ""


HEAD_ONLY = Adaptation(step_size=0.3, scope="head")


def pair(order: str) -> nn.Module:
    """One function and one start; only the order of declaration differs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = {"body": Linear(3, 8), "norm": nn.LayerNorm(8), "out": Linear(8, 3)}
    return Net(
        lambda s, x: s.out(s.norm(torch.tanh(s.body(x)))),
        **{each: parts[each] for each in order.split()},
    ).double()


PLAIN, HEAD_FIRST, NORM_LAST = "body norm out", "out body norm", "body out norm"


def learned(net: nn.Module, rounds: int = 4, inner: Adaptation = HEAD_ONLY, **more: Any) -> Run:
    data = classification([(6, 6)] * 6, [(6, 20)] * 4, seed=3)
    training = TrainingSettings(rounds=rounds)
    return train(data, net, FedMeta(inner), training, execution=DOUBLE, **more)


@pytest.mark.parametrize("order", [HEAD_FIRST, NORM_LAST])
def test_the_order_of_declaration_does_not_matter(order: str) -> None:
    plain, other = learned(pair(PLAIN)), learned(pair(order))
    assert other.meta_model.adaptation.head == ("out.weight", "out.bias")
    for name, leaf in plain.meta_model.theta.items():
        assert torch.allclose(other.meta_model.theta[name], leaf, rtol=0, atol=1e-12)
    assert other.accuracy() == plain.accuracy()


def test_a_layer_norm_behind_the_head_does_not_take_its_place() -> None:
    def net() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = Linear(3, 8), nn.Tanh(), Linear(8, 3), nn.LayerNorm(3)
            return nn.Sequential(*layers).double()

    traced = learned(net())
    named = learned(net(), inner=replace(HEAD_ONLY, scope=("2.*",)))
    other = learned(net(), inner=replace(HEAD_ONLY, scope=("3.*",)))
    for name, leaf in named.meta_model.theta.items():
        assert torch.equal(traced.meta_model.theta[name], leaf)
    assert not torch.equal(other.meta_model.theta["3.weight"], traced.meta_model.theta["3.weight"])
    assert traced.summary["head"]["names"] == ["2.weight", "2.bias"]


def test_the_default_says_what_was_asked_and_what_it_means() -> None:
    job = job_of(classification(), pair(HEAD_FIRST), ADMMFedMeta(), execution=DOUBLE)
    assert job.settings["algorithm"]["inner"]["scope"] == "head"
    assert job.spec.to_dict().get("algorithms") is None  # nobody asked for an adaptation
    assert job.algorithm.inner.moves(job.model.theta) == {"out.weight", "out.bias"}
    expected = {"names": ["out.weight", "out.bias"], "parameters": 27, "of": 75, "note": ""}
    assert job.adapted == expected
    everything = job_of(classification(), pair(PLAIN), FedMeta(), execution=DOUBLE)
    assert everything.adapted is None


def test_learned_steps_are_those_of_the_head() -> None:
    run = learned(pair(HEAD_FIRST), inner=replace(HEAD_ONLY, learned="tensor"))
    assert set(run.meta_model.adaptation.factors or {}) == {"out.weight", "out.bias"}


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = learned(pair(HEAD_FIRST), 4, folder=tmp_path / "whole")
    learned(pair(HEAD_FIRST), 2, folder=tmp_path / "parts")
    parts = learned(pair(HEAD_FIRST), 4, folder=tmp_path / "parts", resume=True)
    for name, leaf in whole.meta_model.theta.items():
        assert torch.equal(parts.meta_model.theta[name], leaf)


def test_a_run_of_an_older_version_goes_on_with_the_module_declared_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = ("norm.weight", "norm.bias")
    named = learned(pair(HEAD_FIRST), 4, replace(HEAD_ONLY, scope=("norm.*",)))
    with monkeypatch.context() as before:
        before.setattr(jobs, "head_of", lambda *_: Head(last))
        learned(pair(HEAD_FIRST), 2, folder=tmp_path / "run")
    file = RunFolder(tmp_path / "run").path / "settings.json"
    stored = json.loads(file.read_text())
    del stored["head"]
    file.write_text(json.dumps(stored))
    (tmp_path / "run/manifest.json").unlink()
    resumed = learned(pair(HEAD_FIRST), 4, folder=tmp_path / "run", resume=True)
    for name, leaf in named.meta_model.theta.items():
        assert torch.equal(resumed.meta_model.theta[name], leaf)


def test_a_saved_model_adapts_the_same_head(tmp_path: Path) -> None:
    model = learned(pair(HEAD_FIRST), 1).meta_model
    model.save(tmp_path / "model.safetensors")
    read = MetaModel.load(tmp_path / "model.safetensors", pair(HEAD_FIRST))
    assert read.adaptation.head == ("out.weight", "out.bias")
    inputs, labels = torch.ones(2, 3).double(), ["class 0", "class 2"]
    moved = read.adapt(inputs, labels).theta
    changed = {
        name for name in moved if not torch.equal(moved[name], read.theta[name].to(moved[name]))
    }
    assert changed == {"out.weight", "out.bias"}


_OWN = """
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.out, self.body = nn.Linear(4, outputs), nn.Linear(inputs, 4)

    def forward(self, x):
        return self.out(self.body(x).relu())


def network(shape, outputs):
    return Net(shape[0], outputs)
"""


def test_every_edge_of_a_fleet_finds_the_same_from_the_plan(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_OWN)
    table = {"model": {"name": f"{tmp_path / 'own.py'}:network"}, "data": {"name": "digits"}}
    Plan("fleet", table, FleetSettings()).save(tmp_path)
    spec = RunSpec.from_dict(Plan.load(tmp_path).request()["table"])
    data = classification()
    blank = replace_inputs(data, 0.0)  # as the platform sees it
    platform = prepare(spec, blank)
    for node in data.sources:
        edge = prepare(spec, data.with_nodes([node]))
        assert edge.algorithm.inner.head == platform.algorithm.inner.head
        assert edge.algorithm.inner.head == ("out.weight", "out.bias")


def replace_inputs(data: Federation, value: float) -> Federation:
    return replace(data, inputs=data.inputs * 0 + value)
