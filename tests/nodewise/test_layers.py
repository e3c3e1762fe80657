from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional

from fedmeta.engine.nodewise import convolution as module
from fedmeta.engine.nodewise.layers import NodewiseLayers
from fedmeta.models.networks import ModelSettings, SamePool, build
from nodewise.loops import (
    check,
    close,
    derivative,
    evaluate_by,
    loss_of,
    node_by_node,
    parameters,
    randn,
)
from problems import flat


class Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Direct(nn.Module):
    """Convolutions that are called as functions, with arguments by name and by place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(randn(3, 2, 3, 3, seed=1))
        self.second = nn.Parameter(randn(2, 3, 2, 2, seed=2))
        self.bias = nn.Parameter(randn(2, seed=3))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(x, self.first, padding=(1, 0), stride=[1, 2])
        x = torch.max_pool2d(x, 2, stride=1)
        return torch.conv2d(functional.elu(x), self.second, self.bias, 1, "same")


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().double()


def after(*layers: nn.Module, channels: int = 4, groups: int = 1) -> Callable[[], nn.Module]:
    """A convolution of (2, 6, 6) to (channels, 6, 6), and layers behind it."""
    return lambda: nn.Sequential(nn.Conv2d(2, channels, 3, padding=1, groups=groups), *layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "same, even kernel": (lambda: nn.Conv2d(2, 3, (2, 4), padding="same"), (2, 5, 6)),
    "same, even along one axis": (
        lambda: nn.Conv2d(2, 3, (2, 3), padding="same"),
        (2, 5, 6),
    ),
    "same, dilated": (
        lambda: nn.Conv2d(2, 3, (4, 2), padding="same", dilation=(1, 3)),
        (2, 6, 7),
    ),
    "valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid", stride=2), (2, 6, 7)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    "reflect": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (2, 5, 5)),
    "without bias": (lambda: nn.Conv2d(2, 3, 3, bias=False), (2, 5, 5)),
    "sequence": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 4, stride=2, padding="valid"), nn.Tanh(), nn.Conv1d(3, 2, 2)
        ),
        (2, 12),
    ),
    "sequence, same": (lambda: nn.Conv1d(2, 3, 4, padding="same"), (2, 7)),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, (2, 3, 1), padding=1), nn.Conv3d(2, 1, 2)),
        (1, 3, 4, 3),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2),
            nn.Tanh(),
            nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1),
        ),
        (2, 7, 8),
    ),
    "transposed grouped": (
        lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2, dilation=2),
        (4, 3, 3),
    ),
    "transposed sequence": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 5)),
    "transposed volume": (lambda: nn.ConvTranspose3d(2, 1, 2, stride=2), (2, 2, 3, 2)),
    "depthwise separable": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.ELU(), nn.Conv2d(3, 4, 1), nn.MaxPool2d(2)
        ),
        (3, 6, 6),
    ),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2), (4, 7, 6)),
    "called directly": (Direct, (2, 6, 6)),
    "max pooling, dilated": (after(nn.MaxPool2d((2, 3), 1, (1, 1), dilation=(2, 1))), (2, 6, 6)),
    "max pooling, ceil": (after(nn.MaxPool2d(3, 2, ceil_mode=True)), (2, 6, 6)),
    "max pooling by name": (
        after(Function(lambda x: functional.max_pool2d(x, kernel_size=(3, 2), padding=(1, 0)))),
        (2, 6, 6),
    ),
    "average, border counted": (after(nn.AvgPool2d(3, 2, 1)), (2, 6, 6)),
    "average, border not counted": (
        after(nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)),
        (2, 6, 6),
    ),
    "average, divisor": (after(nn.AvgPool2d(2, divisor_override=3)), (2, 6, 6)),
    "same pooling, max": (after(SamePool("max")), (2, 6, 6)),
    "same pooling, average": (after(SamePool("average")), (2, 6, 6)),
    "elu, alpha": (after(nn.ELU(0.3)), (2, 6, 6)),
    "elu, in place": (after(nn.ELU(0.7, inplace=True)), (2, 6, 6)),
    "indices": (
        lambda: nn.Sequential(
            Function(lambda x: functional.max_pool2d(x, 2, 1, return_indices=True)[0]),
            nn.Conv2d(2, 3, 3),
        ),
        (2, 6, 6),
    ),
    "adaptive average": (after(nn.AdaptiveAvgPool2d(2)), (2, 6, 6)),
    "adaptive average, uneven": (after(nn.AdaptiveAvgPool2d(4)), (2, 6, 6)),
    "mean": (after(Function(lambda x: x.mean((2, 3))), nn.Linear(4, 2)), (2, 6, 6)),
    "instance norm": (after(nn.InstanceNorm2d(4, affine=True)), (2, 6, 6)),
    "layer norm": (after(nn.LayerNorm([4, 6, 6])), (2, 6, 6)),
    "batch norm without memory": (
        after(nn.BatchNorm2d(4, track_running_stats=False), nn.Tanh()),
        (2, 6, 6),
    ),
    "upsample": (after(nn.Upsample(scale_factor=2)), (2, 6, 6)),
    "upsample, bilinear": (after(nn.Upsample(scale_factor=2, mode="bilinear")), (2, 6, 6)),
    "pixel shuffle": (after(nn.PixelShuffle(2), nn.Conv2d(1, 2, 2)), (2, 6, 6)),
    "unfold": (after(nn.Unfold(3)), (2, 6, 6)),
    "reflection padding": (after(nn.ReflectionPad2d(1)), (2, 6, 6)),
    "reshape": (
        after(Function(lambda x: x.reshape(len(x), -1)), nn.Linear(144, 2)),
        (2, 6, 6),
    ),
}
# Outputs are channels-last in memory, which some of torch's layers do not take under vmap.
LAYOUT_MATTERS: dict[str, Callable[[], nn.Module]] = {
    "view": after(Function(lambda x: x.view(len(x), -1))),
    "view of pooled": after(nn.MaxPool2d(2), Function(lambda x: x.view(len(x), -1))),
    "group norm": after(nn.GroupNorm(2, 4)),
    "group norm after groups": after(nn.GroupNorm(2, 4), groups=2),
    "global average": after(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
    "adaptive max": after(nn.AdaptiveMaxPool2d(2)),
    "max pooling with indices": after(
        Function(lambda x: functional.max_pool2d(x, 2, return_indices=True)[0])
    ),
    "max pooling of a volume": after(
        Function(lambda x: functional.max_pool3d(x.unsqueeze(2), (1, 2, 2)))
    ),
}


@pytest.fixture(params=["torch", "products"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "evaluate", evaluate_by(request.param))
    return request.param


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Tensor, Tensor]]:
    """What our convolution kernels were called with."""
    calls = []
    evaluate = evaluate_by("torch")

    def spy(free: str, first: Tensor, second: Tensor, *rest: object) -> Tensor:
        calls.append((free, first, second))
        return evaluate(free, first, second, *rest)

    monkeypatch.setattr(module, "evaluate", spy)
    return calls


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str):
    make, shape = NETWORKS[name]
    check(seeded(make), randn(2, 2, *shape))


@pytest.mark.parametrize("name", LAYOUT_MATTERS)
def test_layers_that_look_at_the_layout(name: str):
    check(seeded(LAYOUT_MATTERS[name]), randn(2, 2, 2, 6, 6))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("pooling", ["max", "average"])
@pytest.mark.parametrize("activation", ["elu", "tanh"])
def test_networks_of_the_paper(activation: str, pooling: str):
    settings = ModelSettings("cnn", channels=(2, 3), activation=activation, last_pooling=pooling)
    model = build(settings, (1, 9, 8), 3, seed=0)
    check(model, randn(3, 4, 1, 9, 8), ("value", "gradient", "curvature", "third"))


@pytest.mark.usefixtures("backend")
class TestMapping:
    """What may be mapped: some parameters, several axes, data alone."""

    model = build(ModelSettings("cnn", channels=(2, 3)), (1, 8, 7), 3, seed=0).double()
    x = randn(3, 4, 1, 8, 7)

    @pytest.mark.parametrize("mapped", ["bias", "weight", "0.", "none"])
    def test_some_parameters(self, mapped: str):
        theta, v = parameters(self.model, 3), parameters(self.model, 3, seed=9)
        axes = {name: 0 if mapped in name else None for name in theta}
        mixed = {name: leaf if axes[name] == 0 else leaf[0] for name, leaf in theta.items()}
        every = {
            name: leaf if axes[name] == 0 else leaf[:1].expand_as(leaf)
            for name, leaf in theta.items()
        }
        for order in ("gradient", "curvature"):
            function = derivative(loss_of(self.model), order)
            with NodewiseLayers():
                actual = vmap(function, in_dims=(axes, 0, 0))(mixed, self.x, v)
            close(actual, node_by_node(function, every, self.x, v))

    def test_only_biases_and_one_set_of_data(self):
        theta, v = parameters(self.model, 3), parameters(self.model, 3, seed=9)
        axes = {name: 0 if "bias" in name else None for name in theta}
        mixed = {name: leaf if axes[name] == 0 else leaf[0] for name, leaf in theta.items()}
        every = {name: t if axes[name] == 0 else t[:1].expand_as(t) for name, t in theta.items()}
        function = derivative(loss_of(self.model), "curvature")
        with NodewiseLayers():
            actual = vmap(function, in_dims=(axes, None, 0))(mixed, self.x[0], v)
        close(actual, node_by_node(function, every, self.x[:1].expand_as(self.x), v))

    def test_repeats_of_nodes(self):
        theta, v = parameters(self.model, 6), parameters(self.model, 6, seed=9)
        function = derivative(loss_of(self.model), "curvature")
        grid = [{name: t.unflatten(0, (2, 3)) for name, t in tree.items()} for tree in (theta, v)]
        with NodewiseLayers():
            actual = vmap(vmap(function), in_dims=(0, None, 0))(grid[0], self.x, grid[1])
        expected = node_by_node(function, theta, self.x.repeat(2, 1, 1, 1, 1), v)
        close({name: t.flatten(0, 1) for name, t in actual.items()}, expected)

    def test_chunks_of_nodes(self):
        theta, v = parameters(self.model, 3), parameters(self.model, 3, seed=9)
        function = derivative(loss_of(self.model), "gradient")
        with NodewiseLayers():
            actual = vmap(function, chunk_size=2)(theta, self.x, v)
        close(actual, node_by_node(function, theta, self.x, v))

    def test_gradient_of_a_sum_over_nodes(self):
        theta = {name: leaf[0] for name, leaf in parameters(self.model, 1).items()}
        loss = loss_of(self.model)

        def total(theta: dict[str, Tensor]) -> Tensor:
            return vmap(loss, in_dims=(None, 0))(theta, self.x).sum()

        def looped(theta: dict[str, Tensor]) -> Tensor:
            return torch.stack([loss(theta, x) for x in self.x]).sum()

        with NodewiseLayers():
            gradient, pull = vjp(grad(total), theta)
            curvature = pull(gradient)[0]
        expected, pull = vjp(grad(looped), theta)
        close(gradient, expected)
        close(curvature, pull(expected)[0])

    def test_a_gradient_step_inside(self):
        # The meta-gradient of one step, which takes a gradient of a gradient by one graph.
        loss = loss_of(self.model)

        def adapted(theta: dict[str, Tensor], x: Tensor, v: object) -> Tensor:
            inner = grad(loss)(theta, x)
            return loss({name: theta[name] - 0.1 * inner[name] for name in theta}, x.flip(-1))

        theta, v = parameters(self.model, 3), parameters(self.model, 3, seed=9)
        meta = lambda theta, x, v: grad(adapted)(theta, x, v)  # noqa: E731
        with NodewiseLayers():
            actual = vmap(meta)(theta, self.x, v)
        close(actual, node_by_node(meta, theta, self.x, v))


class TestFallThrough:
    """What we do not serve is torch's own."""

    def test_a_single_image(self, asked: list):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.ELU())
        check(model, randn(3, 2, 6, 6))
        model = nn.ConvTranspose2d(2, 3, 3)
        check(model, randn(3, 2, 6, 6))
        assert asked == []

    def test_indices(self):
        x = randn(1, 2, 6, 6)
        with NodewiseLayers():
            values, places = functional.max_pool2d(x, 2, return_indices=True)
            layer = nn.MaxPool2d(2, return_indices=True)(x)
        expected = functional.max_pool2d(x, 2, return_indices=True)
        assert torch.equal(values, expected[0])
        assert torch.equal(places, expected[1])
        assert torch.equal(layer[1], expected[1])

    def test_in_place_is_in_place(self):
        x = randn(5)
        with NodewiseLayers():
            result = functional.elu(x, inplace=True)
        assert result.data_ptr() == x.data_ptr()
        close(x, functional.elu(randn(5)))

    def test_errors_are_those_of_torch(self):
        with NodewiseLayers(), pytest.raises(RuntimeError, match="channels"):
            nn.Conv2d(3, 2, 3)(torch.zeros(1, 2, 6, 6))
        with NodewiseLayers(), pytest.raises(RuntimeError, match="pad should be at most half"):
            functional.max_pool2d(torch.zeros(1, 2, 6, 6), 2, padding=2)

    def test_same_padding_with_a_stride(self):
        with NodewiseLayers(), pytest.raises(RuntimeError, match="strided"):
            functional.conv2d(randn(1, 2, 6, 6), randn(3, 2, 3, 3), padding="same", stride=2)

    def test_no_images(self):
        model = nn.Conv2d(2, 3, 3).double()
        theta = parameters(model, 2)
        with NodewiseLayers():
            outputs = vmap(lambda t, x: functional_call(model, t, (x,)))(
                theta, randn(2, 0, 2, 6, 6)
            )
        assert outputs.shape == (2, 0, 3, 4, 4)

    def test_elu_that_falls(self):
        x = randn(5)
        slope = grad(lambda x: functional.elu(x, -0.5).sum())
        with NodewiseLayers():
            actual = slope(x)
        close(actual, slope(x))


class TestAutocast:
    """Under torch's automatic casting, types are those of torch's own layers."""

    LAYERS = (
        (lambda: nn.Conv1d(2, 3, 3), (2, 8)),
        (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 6, 6)),
        (lambda: nn.Conv2d(2, 4, 2, groups=2, bias=False), (2, 6, 6)),
        (lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3)),
        (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    )

    @pytest.mark.parametrize(("make", "shape"), LAYERS)
    def test_convolutions(self, make: object, shape: tuple[int, ...], asked: list):
        layer, x = seeded(make).float(), randn(2, *shape).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = layer(x)
            with NodewiseLayers():
                actual = layer(x)
        assert actual.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
        assert all(t.dtype == torch.bfloat16 for _, *operands in asked for t in operands)
        assert asked

    def test_mixed_types(self):
        layer, x = seeded(lambda: nn.Conv2d(2, 3, 3)).float(), randn(2, 2, 6, 6).bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16), NodewiseLayers():
            assert layer(x).dtype == torch.bfloat16

    @pytest.mark.parametrize(
        "layer", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.ELU()], ids=["max", "average", "elu"]
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_other_layers_keep_the_type(self, layer: nn.Module, dtype: torch.dtype):
        x = randn(1, 2, 4, 4).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = layer(x)
            with NodewiseLayers():
                actual = layer(x)
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)

    @pytest.mark.parametrize("order", ["gradient", "curvature"])
    def test_derivatives(self, order: str, asked: list):
        model = build(ModelSettings("cnn", channels=(2, 3)), (1, 8, 8), 3, seed=0)
        theta = {name: leaf.float() for name, leaf in parameters(model, 2).items()}
        x, v = randn(2, 4, 1, 8, 8).float(), {name: torch.ones_like(t) for name, t in theta.items()}
        function = derivative(loss_of(model), order)
        expected = node_by_node(function, theta, x, v)
        with torch.autocast("cpu", dtype=torch.bfloat16), NodewiseLayers():
            actual = vmap(function)(theta, x, v)
        assert all(t.dtype == torch.bfloat16 for _, *operands in asked for t in operands)
        assert all(leaf.dtype == torch.float32 for leaf in actual.values())
        difference = flat(actual) - flat(expected)
        assert 0 < difference.norm() <= 0.1 * flat(expected).norm()

    def test_float64_is_left_alone(self):
        layer, x = seeded(lambda: nn.Conv2d(2, 3, 3)), randn(2, 2, 6, 6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = layer(x)
            with NodewiseLayers():
                actual = layer(x)
        assert actual.dtype == expected.dtype == torch.float64

    def test_off(self):
        layer, x = seeded(lambda: nn.Conv2d(2, 3, 3)).float(), randn(2, 2, 6, 6).float()
        with torch.autocast("cpu", enabled=False), NodewiseLayers():
            assert layer(x).dtype == torch.float32


@contextmanager
def broken() -> Iterator[None]:
    with NodewiseLayers():
        yield
        raise KeyError("inside")


class TestMode:
    """The context: nothing changes outside it, however it was left."""

    layer, x = seeded(lambda: nn.Conv2d(2, 3, 3)), randn(1, 2, 6, 6)

    def served(self, asked: list) -> bool:
        before = len(asked)
        self.layer(self.x)
        return len(asked) > before

    def test_only_inside(self, asked: list):
        assert not self.served(asked)
        with NodewiseLayers():
            assert self.served(asked)
        assert not self.served(asked)

    def test_outside_is_torch_to_the_bit(self, asked: list):
        model = nn.Sequential(self.layer, nn.MaxPool2d(2), nn.ELU())
        before = model(self.x)
        with NodewiseLayers():
            close(model(self.x), before)
        assert torch.equal(model(self.x), before)
        assert "Contraction" not in str(model(self.x).grad_fn)

    def test_nests(self, asked: list):
        with NodewiseLayers():
            with NodewiseLayers():
                assert self.served(asked)
            assert self.served(asked)
        assert not self.served(asked)

    def test_left_by_an_exception(self, asked: list):
        with pytest.raises(KeyError), broken():
            assert self.served(asked)
        assert not self.served(asked)
        with NodewiseLayers():
            with pytest.raises(RuntimeError):
                nn.Conv2d(3, 2, 3)(self.x)
            assert self.served(asked)
        assert not self.served(asked)

    def test_what_is_inside_vmap_and_grad_is_served_too(self, asked: list):
        with NodewiseLayers():
            vmap(grad(lambda x: self.layer(x).square().sum()))(self.x.unsqueeze(0))
        assert [free for free, *_ in asked] == ["g", "x"]

    @pytest.mark.parametrize("layers", [[nn.MaxPool2d(2)], [nn.AvgPool2d(2)], [nn.ELU()]])
    def test_poolings_and_activations_are_served(self, layers: list[nn.Module]):
        x = self.x.clone().requires_grad_()
        names = {"MaximaBackward", "PoolingMapBackward", "EluBackward"}
        with NodewiseLayers():
            inside = str(layers[0](x).grad_fn)
        assert any(f"_{name}" in inside for name in names)
        assert not any(f"_{name}" in str(layers[0](x).grad_fn) for name in names)
