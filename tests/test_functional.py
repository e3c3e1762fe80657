from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta.algorithms import (
    ADMMFedMeta,
    Algorithm,
    Centralised,
    FedAvg,
    PerFedAvg,
    PlatformOptimizer,
)
from fedmeta.core import randomness
from fedmeta.core.errors import ModelError
from fedmeta.core.objective import Adaptation
from fedmeta.models.functional import check_on_samples, functionalise
from fedmeta.models.keyed_dropout import KeyedDropout
from problems import (
    LAYOUTS,
    classification,
    double,
    engine_for,
    flat,
    largest_difference,
    trace,
)

KEY = randomness.key(0)
INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Untied(nn.Module):
    """The same with the weight passed by hand."""

    def __init__(self, tied: Tied) -> None:
        super().__init__()
        self.weight = nn.Parameter(tied.first.weight.detach().clone())
        self.first = nn.Parameter(tied.first.bias.detach().clone())
        self.second = nn.Parameter(tied.second.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(functional.linear(x, self.weight, self.first))
        return functional.linear(hidden, self.weight, self.second)


class Own(nn.Module):
    """A linear layer followed by whatever is wrong with a model."""

    def __init__(self, fault: Any) -> None:
        super().__init__()
        self.layer, self.fault = nn.Linear(3, 3), fault

    def forward(self, x: Tensor) -> Tensor:
        return self.fault(self, self.layer(x))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(3), "layer 'inner.1' (BatchNorm1d) normalises over the batch"),
        (nn.BatchNorm2d(3), "layer 'inner.1' (BatchNorm2d) normalises"),
        (nn.SyncBatchNorm(3), "layer 'inner.1' (SyncBatchNorm) normalises"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "layer 'inner.1' (InstanceNorm1d)"),
        (nn.AlphaDropout(), "layer 'inner.1' (AlphaDropout) is not supported"),
        (nn.FeatureAlphaDropout(), "layer 'inner.1' (FeatureAlphaDropout) is not supported"),
    ],
)
def test_layers_that_cannot_be_are_named(layer: nn.Module, message: str) -> None:
    model = nn.Sequential()
    model.add_module("inner", nn.Sequential(nn.Linear(3, 3), layer))
    with pytest.raises(ModelError, match=re.escape(message)):
        functionalise(model)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_need_a_first_run() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ModelError, match=r"layer '0' \(LazyLinear\) has no shape yet"):
        functionalise(model)
    model(torch.zeros(1, 2))
    assert list(functionalise(model).theta) == ["0.weight", "0.bias"]


def test_instance_norm_without_running_statistics_is_fine() -> None:
    assert functionalise(nn.Sequential(nn.Linear(3, 3), nn.InstanceNorm1d(3))).theta


def test_nothing_to_train() -> None:
    with pytest.raises(ModelError, match="no trainable parameter"):
        functionalise(nn.Linear(3, 3).requires_grad_(False))
    with pytest.raises(ModelError, match="no trainable parameter"):
        functionalise(nn.Tanh())


def test_the_users_module_is_never_changed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3)).double().eval()
    before = copy.deepcopy(model.state_dict())
    taken = double(model)
    trace(engine_for(FedAvg(0.5), classification(), taken, LAYOUTS["loop"]), taken, 3)
    taken.module({name: leaf + 1 for name, leaf in taken.theta.items()})
    assert all(torch.equal(before[name], leaf) for name, leaf in model.state_dict().items())
    assert isinstance(model[1], nn.Dropout)
    assert not model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_frozen_parameters_are_constants() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[0].requires_grad_(False)
    taken = double(model)
    assert list(taken.theta) == ["2.weight", "2.bias"]
    assert set(taken.constants) == {"0.weight", "0.bias"}
    result = trace(engine_for(ADMMFedMeta(), classification(), taken), taken, 3)
    assert list(result.state.theta) == ["2.weight", "2.bias"]
    module = taken.module(result.state.theta)
    assert torch.equal(module[0].weight, model[0].weight)
    assert not torch.equal(module[2].weight, model[2].weight)


def test_buffers_are_constants_and_travel() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + self.shift)

    taken = double(Shifted())
    assert taken.constants["shift"].dtype == torch.float64
    inputs = torch.zeros(1, 3, dtype=torch.float64)
    expected = taken(taken.theta, inputs)
    assert torch.allclose(taken.module(taken.theta)(inputs), expected)
    moved = {**taken.constants, "shift": torch.full((3,), 2.0).double()}
    other = type(taken)(taken.theta, moved, taken.training, taken.inference, taken.dropouts)
    assert not torch.allclose(other(taken.theta, inputs), expected)
    assert torch.allclose(other.module(taken.theta)(inputs), other(taken.theta, inputs))


def test_tied_parameters_are_one() -> None:
    torch.manual_seed(0)
    tied = Tied().double()
    taken, plain = double(tied), double(Untied(tied))
    assert list(taken.theta) == ["first.weight", "first.bias", "second.bias"]
    algorithm = ADMMFedMeta(Adaptation(0.2), 0.5)
    for layout in ("batched-all", "loop"):
        got, expected = (
            trace(engine_for(algorithm, classification(), model, LAYOUTS[layout]), model, 5)
            for model in (taken, plain)
        )
        assert largest_difference(got.theta, expected.theta) < 1e-12
    module = taken.module(got.state.theta)
    assert module.second.weight is module.first.weight
    assert torch.allclose(module(INPUTS), taken(got.state.theta, INPUTS))


def test_a_module_stands_alone() -> None:
    taken = double(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)))
    theta = {name: leaf + 0.5 for name, leaf in taken.theta.items()}
    module = taken.module(theta)
    assert torch.allclose(module(INPUTS), taken(theta, INPUTS))
    assert not module.training


class TestDropout:
    def test_mask_and_scale(self) -> None:
        layer = KeyedDropout(0.25, 0)
        outputs = layer(torch.ones(400, 50))
        assert outputs.unique().tolist() == pytest.approx([0, 4 / 3])
        assert abs(float((outputs == 0).double().mean()) - 0.25) < 0.02
        assert torch.equal(layer.eval()(torch.ones(2, 2)), torch.ones(2, 2))
        assert torch.equal(KeyedDropout(0, 0)(INPUTS), INPUTS)

    @pytest.mark.parametrize(
        ("kind", "shape"),
        [
            (nn.Dropout, (40, 3)),
            (nn.Dropout1d, (40, 5, 4)),
            (nn.Dropout2d, (40, 5, 4, 4)),
            (nn.Dropout3d, (40, 5, 2, 2, 2)),
        ],
    )
    def test_channels_fall_as_a_whole(self, kind: Any, shape: tuple[int, ...]) -> None:
        features = math.prod(shape[1:])
        taken = functionalise(nn.Sequential(kind(0.5), nn.Flatten(), nn.Linear(features, 1)))
        layer = taken.training.get_submodule("0")
        outputs = layer(torch.ones(shape)).reshape(*shape[: 2 if kind is not nn.Dropout else 1], -1)
        dropped = (outputs == 0).double().mean(-1)
        if kind is nn.Dropout:
            assert set(dropped.unique().tolist()) > {0.0, 1.0}
        else:
            assert set(dropped.unique().tolist()) == {0.0, 1.0}

    def test_same_key_same_mask(self) -> None:
        taken = double(nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.Linear(20, 3)))
        once, again, other, off = (
            taken(taken.theta, INPUTS, key) for key in (KEY, KEY, randomness.key(1), None)
        )
        assert torch.equal(once, again)
        assert not torch.allclose(once, other)
        assert not torch.allclose(once, off)

    def test_masks_do_not_see_padding(self) -> None:
        taken = double(nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.Linear(20, 3)))
        whole, part = taken(taken.theta, INPUTS, KEY), taken(taken.theta, INPUTS[:4], KEY)
        assert torch.allclose(whole[:4], part)

    def test_layers_have_masks_of_their_own_even_if_one_object(self) -> None:
        class Masks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))
                self.one = nn.Dropout(0.5)
                self.two = self.one

            def forward(self, x: Tensor) -> Tensor:
                return torch.cat([self.one(x), self.two(x)], dim=1) * self.scale

        taken = double(Masks())
        assert taken.dropouts == ("one", "two")
        ones = torch.ones(6, 20, dtype=torch.float64)
        both = taken(taken.theta, ones, KEY)
        assert not torch.equal(both[:, :20], both[:, 20:])
        check_on_samples(taken, ones, 40)

    def test_nodes_and_rounds_differ(self) -> None:
        """Two nodes with the same data, and two rounds, send different gradients."""
        data = classification(sizes=((4, 3), (4, 3)))
        inputs, labels = data.inputs.copy(), data.labels.copy()
        inputs[7:14], labels[7:14] = inputs[:7], labels[:7]
        data = type(data)(inputs, labels, data.task, data.nodes)
        taken = double(nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.Linear(20, 3)))
        engine = engine_for(ADMMFedMeta(penalty=0.3, resplit="none"), data, taken)
        state, nodes = engine.start(taken.theta)
        duals = []
        for number in (1, 2):
            result = engine.round(state, nodes, number)
            duals += [result.nodes["dual"]["2.weight"][i].clone() for i in range(2)]
        distances = [
            float((a - b).abs().max()) for i, a in enumerate(duals) for b in duals[i + 1 :]
        ]
        assert min(distances) > 1e-3
        still = double(nn.Sequential(nn.Linear(3, 20), nn.Linear(20, 3)))
        engine = engine_for(ADMMFedMeta(penalty=0.3, resplit="none"), data, still)
        result = engine.round(*engine.start(still.theta), 1)
        dual = result.nodes["dual"]["1.weight"]
        assert torch.allclose(dual[0], dual[1]), "without dropout they are twins"

    @pytest.mark.parametrize(
        "algorithm",
        [
            ADMMFedMeta(Adaptation(0.2, 2), 0.5, local_steps=2),
            ADMMFedMeta(Adaptation(0.2, 2, batch_size=3), 0.5, curvature="finite-difference"),
            PerFedAvg(Adaptation(0.2, batch_size=2), 0.2, local_steps=2),
            FedAvg(0.3, local_steps=3),
            FedAvg(0.3, local_steps=3, batch_size=6),
            Centralised(server=PlatformOptimizer("plain", 0.3)),
        ],
        ids=["admm", "admm-batches", "per-fedavg", "fedavg", "fedavg-batches", "centralised"],
    )
    def test_all_layouts_agree(self, algorithm: Algorithm) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3))
        taken, data = double(model), classification()
        traces = {
            name: trace(engine_for(algorithm, data, taken, execution), taken, 4)
            for name, execution in LAYOUTS.items()
        }
        for name in ("batched-1", "batched-3", "batched-all"):
            assert largest_difference(traces[name].theta, traces["loop"].theta) < 1e-10, name
        other = trace(engine_for(algorithm, data, taken, seed=1), taken, 4)
        assert largest_difference(other.theta, traces["loop"].theta) > 1e-4

    def test_differences_see_one_mask(self) -> None:
        """With a fresh mask per gradient the quotient would be off by about 1/δ."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
        taken, data = double(model), classification()

        def tiny(_: Any) -> Tensor:
            return torch.tensor(1e-5, dtype=torch.float64)

        inner = Adaptation(0.2, 2)
        ends = [
            flat(trace(engine_for(algorithm, data, taken), taken, 3).state.theta)
            for algorithm in (
                ADMMFedMeta(inner, 0.5),
                ADMMFedMeta(inner, 0.5, curvature="finite-difference", difference=tiny),
            )
        ]
        assert float((ends[0] - ends[1]).abs().max()) < 1e-7


class TestCheck:
    def test_a_good_model_passes(self) -> None:
        taken = double(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)))
        check_on_samples(taken, INPUTS, 3)

    @pytest.mark.parametrize(
        "fault",
        [
            lambda _, x: functional.dropout(x, 0.5),
            lambda me, x: functional.alpha_dropout(x, 0.5, me.training),
            lambda _, x: x + torch.rand_like(x),
        ],
        ids=["always", "alpha", "noise"],
    )
    def test_randomness_that_no_key_drives(self, fault: Any) -> None:
        torch.manual_seed(0)
        taken = double(Own(fault))
        with pytest.raises(ModelError, match=r"different outputs .* as dropout only"):
            check_on_samples(taken, INPUTS, 3)

    @pytest.mark.parametrize(
        "model",
        [
            nn.LSTM(3, 3, num_layers=2, dropout=0.5, batch_first=True),
            nn.MultiheadAttention(3, 1, dropout=0.5, batch_first=True),
        ],
    )
    def test_dropout_arguments_of_layers(self, model: nn.Module) -> None:
        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = model

            def forward(self, x: Tensor) -> Tensor:
                inputs = (x, x, x) if isinstance(self.body, nn.MultiheadAttention) else (x,)
                return self.body(*inputs)[0][:, -1]

        sequences = torch.randn(4, 5, 3, dtype=torch.float64)
        taken = check_on_samples(double(Last()), sequences, 3).model
        assert taken.draws
        first, other = (taken(taken.theta, sequences, randomness.key(n)) for n in (0, 1))
        assert torch.equal(first, taken(taken.theta, sequences, randomness.key(0)))
        assert not torch.allclose(first, other)
        plain = double(Last()).inference.double()
        assert torch.allclose(taken(taken.theta, sequences), plain(sequences))

    @pytest.mark.parametrize(
        "fault",
        [
            lambda _, x: x - x.mean(0),
            lambda me, x: (x - x.mean(0)) if me.training else x,
            lambda _, x: x.cumsum(0).flip(0),
        ],
        ids=["batch mean", "batch mean in training", "running sum"],
    )
    def test_coupled_samples(self, fault: Any) -> None:
        with pytest.raises(ModelError, match="changes with the other samples"):
            check_on_samples(double(Own(fault)), INPUTS, 3)

    def test_wrong_outputs_and_shapes(self) -> None:
        taken = double(nn.Linear(3, 2))
        with pytest.raises(ModelError, match=r"returns \(6, 2\) for 6 samples: .* 3 outputs"):
            check_on_samples(taken, INPUTS, 3)
        with pytest.raises(ModelError, match=r"fails on samples of shape \(4,\)"):
            check_on_samples(taken, torch.zeros(2, 4, dtype=torch.float64), 2)
