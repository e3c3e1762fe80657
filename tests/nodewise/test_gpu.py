"""Our own GPU kernels; needs a GPU and Triton, and of the project nothing but its source.

PYTHONPATH=src python3 -m pytest -c /dev/null --rootdir . -p no:cacheprovider \
    --noconftest --import-mode=importlib tests/nodewise/test_gpu.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from fedmeta.engine.nodewise import kernels, matrix_products, torch_pooling
from fedmeta.engine.nodewise.geometry import Geometry, Window
from fedmeta.engine.nodewise.layers import NodewiseLayers
from fedmeta.models.networks import ModelSettings, build

DEVICE = "cuda"

if not torch.cuda.is_available():
    pytest.skip("these kernels run on a GPU, and there is none", allow_module_level=True)
if not kernels.has_triton():
    pytest.skip("these kernels need Triton, which is not installed", allow_module_level=True)

from fedmeta.engine.nodewise import triton_convolution, triton_operands, triton_pooling  # noqa: E402

SLOTS = ("g", "x", "w")


@pytest.fixture(autouse=True)
def _float32_as_it_is() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw).to(DEVICE, dtype)


def error(actual: Tensor, expected: Tensor) -> float:
    """Of the whole, relative to the norm."""
    assert actual.shape == expected.shape
    assert bool(actual.isfinite().all())
    return float(((actual.double() - expected).norm() / expected.norm()).detach())


# Input, kernel, nodes of x, w and g (1: shared), batch, motion.
CONVOLUTIONS = {
    "first of the paper": ((1, 28, 28), (32, 1, 3, 3), (3, 3, 3), 4, {"padding": 1}),
    "second of the paper": ((32, 14, 14), (64, 32, 3, 3), (3, 3, 3), 4, {"padding": 1}),
    "wide": ((64, 8, 8), (128, 64, 3, 3), (2, 2, 2), 2, {"padding": 1}),
    "colours": ((3, 32, 32), (32, 3, 3, 3), (2, 2, 2), 3, {"padding": 1}),
    "odd channels": ((5, 9, 7), (7, 5, 3, 3), (3, 3, 3), 2, {"padding": 1}),
    "just over a block": ((33, 6, 6), (65, 33, 3, 3), (2, 2, 2), 2, {}),
    "strided": ((4, 11, 10), (6, 4, 3, 3), (2, 2, 2), 2, {"stride": (2, 3), "padding": 1}),
    "strided, whole blocks": ((32, 9, 9), (32, 32, 3, 3), (2, 2, 2), 2, {"stride": 2}),
    "dilated": ((32, 9, 12), (8, 32, 3, 2), (2, 2, 2), 2, {"dilation": (2, 3), "padding": 2}),
    "large kernel": ((2, 12, 12), (3, 2, 5, 4), (2, 2, 2), 2, {"padding": (2, 1)}),
    "padding beyond the kernel": ((3, 4, 4), (2, 3, 1, 2), (2, 2, 2), 2, {"padding": 3}),
    "one by one": ((48, 5, 5), (40, 48, 1, 1), (2, 2, 2), 3, {}),
    "one pixel, one node": ((1, 1, 1), (1, 1, 1, 1), (1, 1, 1), 1, {}),
    "shared weight": ((32, 8, 8), (64, 32, 3, 3), (3, 1, 3), 2, {"padding": 1}),
    "shared weight, odd": ((3, 8, 7), (5, 3, 3, 3), (3, 1, 3), 2, {"padding": 1}),
    "shared input": ((3, 8, 8), (8, 3, 3, 3), (1, 3, 3), 2, {"padding": 1}),
    "shared factor": ((32, 8, 8), (8, 32, 3, 3), (3, 3, 1), 2, {"padding": 1}),
    "many pixels": ((8, 40, 40), (16, 8, 3, 3), (2, 2, 2), 8, {"padding": 1}),
    "sequence": ((3, 40), (8, 3, 5), (3, 3, 3), 2, {"stride": 2, "padding": 2}),
    "sequence, whole blocks": ((32, 20), (40, 32, 3), (2, 2, 2), 2, {"dilation": 2}),
}


def operands(name: str, dtype: torch.dtype = torch.float32) -> tuple[Geometry, dict[str, Tensor]]:
    inputs, kernel, nodes, batch, motion = CONVOLUTIONS[name]
    x = randn(nodes[0], batch, *inputs, seed=1, dtype=dtype)
    w = randn(nodes[1], *kernel, seed=2, dtype=dtype)
    geometry = Geometry.of(x[0], w[0], **motion)
    g = randn(nodes[2], batch, *geometry.outputs, seed=3, dtype=dtype)
    return geometry, {"x": x, "w": w, "g": g}


def pair(free: str, tensors: dict[str, Tensor]) -> list[Tensor]:
    return [tensors[slot] for slot in ("x", "w", "g") if slot != free]


def compare(name: str, free: str, dtype: torch.dtype, most: float) -> None:
    geometry, tensors = operands(name, dtype)
    first, second = pair(free, tensors)
    actual = triton_convolution.evaluate(free, first, second, geometry)
    expected = matrix_products.evaluate(free, first.double(), second.double(), geometry)
    assert actual.dtype == dtype
    assert error(actual, expected) <= most


@pytest.mark.parametrize("free", SLOTS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
class TestConvolutions:
    """Against batched products in float64."""

    def test_slots(self, name: str, free: str):
        compare(name, free, torch.float32, 1e-6)

    def test_a_node_alone_gives_the_same_bits(self, name: str, free: str):
        geometry, tensors = operands(name)
        first, second = pair(free, tensors)
        together = triton_convolution.evaluate(free, first, second, geometry)
        assert torch.equal(together, triton_convolution.evaluate(free, first, second, geometry))
        alone = triton_convolution.evaluate(free, first[-1:], second[-1:], geometry)
        assert torch.equal(together[-1:], alone)

    def test_layout_in_memory_does_not_matter(self, name: str, free: str):
        geometry, tensors = operands(name)
        first, second = pair(free, tensors)
        crooked = [t.transpose(1, -1).contiguous().transpose(1, -1) for t in (first, second)]
        actual = triton_convolution.evaluate(free, *crooked, geometry)
        assert torch.equal(actual, triton_convolution.evaluate(free, first, second, geometry))


@pytest.mark.parametrize("free", SLOTS)
@pytest.mark.parametrize(
    "name", ["first of the paper", "second of the paper", "odd channels", "strided", "sequence"]
)
def test_slots_in_bfloat16(name: str, free: str):
    compare(name, free, torch.bfloat16, 2e-2)


@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize(
    "name", ["first of the paper", "odd channels", "shared weight", "shared input", "sequence"]
)
def test_bias(name: str, sets: int):
    geometry, tensors = operands(name)
    x, w = tensors["x"], tensors["w"]
    bias = randn(sets, geometry.outputs[0], seed=4)
    actual = triton_convolution.evaluate("g", x, w, geometry, bias)
    plain = matrix_products.evaluate("g", x.double(), w.double(), geometry)
    expected = plain + bias.double().reshape(sets, 1, -1, *[1] * len(geometry.stride))
    assert error(actual, expected) <= 1e-6


def test_bias_of_each_node_where_all_else_is_shared():
    geometry, tensors = operands("odd channels")
    x, w, bias = tensors["x"][:1], tensors["w"][:1], randn(3, 7, seed=4)
    actual = triton_convolution.evaluate("g", x, w, geometry, bias)
    expected = matrix_products.evaluate("g", x.double(), w.double(), geometry)
    assert error(actual, expected + bias.double()[:, None, :, None, None]) <= 1e-6


@pytest.mark.parametrize(
    "shape", [(3, 4, 5, 9, 7), (2, 2, 33, 40), (1, 8, 64, 28, 28), (2, 1, 1, 1)]
)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_bias_adjoint(shape: tuple[int, ...], dtype: torch.dtype, most: float):
    g = randn(*shape, dtype=dtype)
    actual, parts = triton_operands.pixel_sum(g, 3)
    assert actual.dtype == dtype
    assert torch.equal(parts, triton_operands.bfloat16_parts(g.movedim(2, -1).contiguous(), 3))
    assert error(actual, g.double().sum((1, *range(3, g.ndim)))) <= most


@pytest.mark.parametrize("free", SLOTS)
def test_rounded_products_where_torch_is_told_so(free: str):
    torch.backends.cuda.matmul.allow_tf32 = True
    geometry, tensors = operands("second of the paper")
    first, second = pair(free, tensors)
    actual = triton_convolution.evaluate(free, first, second, geometry)
    expected = matrix_products.evaluate(free, first.double(), second.double(), geometry)
    assert error(actual, expected) <= 2e-3


class TestRule:
    """Which kernels a GPU gets."""

    @pytest.mark.parametrize("free", SLOTS)
    def test_our_own(self, free: str):
        geometry, tensors = operands("second of the paper")
        first, second = pair(free, tensors)
        actual = kernels.evaluate(free, first, second, geometry)
        assert torch.equal(actual, triton_convolution.evaluate(free, first, second, geometry))

    @pytest.mark.parametrize("free", SLOTS)
    def test_products_in_float64(self, free: str):
        geometry, tensors = operands("second of the paper", torch.float64)
        first, second = pair(free, tensors)
        actual = kernels.evaluate(free, first, second, geometry)
        assert torch.equal(actual, matrix_products.evaluate(free, first, second, geometry))

    @pytest.mark.parametrize(
        "layer",
        [
            nn.Conv2d(4, 4, 3, groups=4),
            nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1),
            nn.Conv2d(4, 3, 3, padding="same"),
        ],
    )
    def test_layers_of_torch(self, layer: nn.Module):
        layer, x = layer.to(DEVICE).double(), randn(2, 4, 6, 6, dtype=torch.float64)
        with NodewiseLayers():
            actual = layer(x)
        assert error(actual, layer(x)) <= 1e-12


WINDOWS = {
    "halves": Window((2, 2), (2, 2), (0, 0), (1, 1), False),
    "same, even": Window((3, 3), (2, 2), (0, 0), (1, 1), True, False),
    "same, odd": Window((3, 3), (2, 2), (1, 1), (1, 1), True, False),
    "overlapping": Window((3, 2), (1, 1), (1, 1), (1, 1), False),
    "gaps between": Window((2, 2), (3, 3), (1, 0), (1, 1), True),
    "counts the border": Window((3, 3), (2, 2), (1, 1), (1, 1), True, True),
    "divides by 5": Window((3, 3), (2, 2), (1, 1), (1, 1), True, False, 5),
    "uneven": Window((5, 3), (3, 2), (2, 1), (1, 1), True, True),
}
LEADING = [(2,), (3, 2), (2, 2, 2)]


def small_numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Whole numbers, whose sums are exact in any order; many are equal."""
    draw = torch.Generator().manual_seed(5)
    return torch.randint(-4, 5, shape, generator=draw).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("leading", LEADING, ids=len)
@pytest.mark.parametrize("name", WINDOWS)
class TestPoolings:
    """Against torch's own kernels on the CPU: the largest ones exactly."""

    def test_maxima(self, name: str, leading: tuple[int, ...], dtype: torch.dtype):
        window = WINDOWS[name]
        for draw in (randn, small_numbers):
            images = draw(*leading, 5, 11, 8, dtype=dtype)
            self.compare(images, window)
            self.compare(images.transpose(-1, -3).contiguous().transpose(-1, -3), window)

    def compare(self, images: Tensor, window: Window) -> None:
        size = images.shape[-2:]
        maxima, places = triton_pooling.maxima(images, window)
        expected, torch_places = torch_pooling.maxima(images.cpu(), window)
        assert maxima.dtype == images.dtype
        assert torch.equal(maxima.cpu(), expected)
        gradient = small_numbers(*maxima.shape, dtype=images.dtype)
        actual = triton_pooling.unpool(gradient, places, size, window)
        unpooled = torch_pooling.unpool(gradient.cpu(), torch_places, size, window)
        assert torch.equal(actual.cpu(), unpooled)
        others = randn(*images.shape, seed=7, dtype=images.dtype)
        actual = triton_pooling.pick(others, places, window)
        assert torch.equal(actual.cpu(), torch_pooling.pick(others.cpu(), torch_places, window))

    def test_averages(self, name: str, leading: tuple[int, ...], dtype: torch.dtype):
        window, most = WINDOWS[name], 1e-6 if dtype == torch.float32 else 2e-2
        images = randn(*leading, 5, 11, 8, dtype=dtype)
        actual = triton_pooling.averages(images, window)
        expected = torch_pooling.averages(images.cpu().double(), window)
        assert actual.dtype == dtype
        assert error(actual.cpu(), expected) <= most
        gradient, size = randn(*actual.shape, seed=8, dtype=dtype), images.shape[-2:]
        actual = triton_pooling.spread(gradient, size, window)
        expected = torch_pooling.spread(gradient.cpu().double(), size, window)
        assert error(actual.cpu(), expected) <= most


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_goes_through_as_in_torch(value: float):
    images, window = randn(2, 3, 8, 8), WINDOWS["same, even"]
    images[0, 1, 2:6, 3] = value
    images[1] = value
    maxima, places = triton_pooling.maxima(images, window)
    expected, torch_places = torch_pooling.maxima(images.cpu(), window)
    torch.testing.assert_close(maxima.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    gradient = small_numbers(*maxima.shape)
    actual = triton_pooling.unpool(gradient, places, images.shape[-2:], window)
    unpooled = torch_pooling.unpool(gradient.cpu(), torch_places, images.shape[-2:], window)
    assert torch.equal(actual.cpu(), unpooled)


def test_a_large_window():
    window = Window((12, 12), (12, 12), (0, 0), (1, 1), False)
    images = randn(1, 2, 24, 24)
    maxima, places = triton_pooling.maxima(images, window)
    expected, torch_places = torch_pooling.maxima(images.cpu(), window)
    actual = triton_pooling.unpool(maxima, places, images.shape[-2:], window)
    assert torch.equal(
        actual.cpu(), torch_pooling.unpool(expected, torch_places, images.shape[-2:], window)
    )


class Sequences(nn.Module):
    """A network with one spatial axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, 5, 3, padding=1), nn.ELU(), nn.Conv1d(5, 3, 4, stride=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(-1)


MODELS = {
    "max": (ModelSettings("cnn", channels=(8, 32, 40)), (3, 17, 16)),
    "average": (ModelSettings("cnn", channels=(8, 16), last_pooling="average"), (1, 14, 14)),
    "sequences": (Sequences, (2, 20)),
}


class Curvature:
    """Gradient and Hessian product of every node."""

    def __init__(self, name: str, nodes: int = 3) -> None:
        kind, shape = MODELS[name]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = build(kind, shape, 4, seed=0) if isinstance(kind, ModelSettings) else kind()
        self.model = made
        leaves = {key: leaf.detach() for key, leaf in made.named_parameters()}
        noisy = {
            key: leaf.to(DEVICE) + 0.1 * randn(nodes, *leaf.shape, seed=i)
            for i, (key, leaf) in enumerate(leaves.items())
        }
        v = {key: randn(*leaf.shape, seed=50) for key, leaf in noisy.items()}
        self.arguments = noisy, v, randn(nodes, 6, *shape, seed=99)

    def one(self, theta: dict[str, Tensor], v: dict[str, Tensor], x: Tensor) -> tuple:
        def loss(theta: dict[str, Tensor]) -> Tensor:
            return functional_call(self.model, theta, (x,)).square().sum(1).mean()

        gradient, pull = vjp(grad(loss), theta)
        return gradient, pull(v)[0]

    def all(self) -> Tensor:
        with NodewiseLayers():
            gradient, product = vmap(self.one)(*self.arguments)
        return torch.cat([t.flatten(1) for tree in (gradient, product) for t in tree.values()], 1)

    def loop(self) -> Tensor:
        """In float64 on the CPU, by torch's own layers."""
        theta, v, x = self.arguments
        rows = []
        for node in range(len(x)):
            trees = [
                {key: t[node].double().cpu() for key, t in tree.items()} for tree in (theta, v)
            ]
            gradient, product = self.one(*trees, x[node].double().cpu())
            rows.append(
                torch.cat([t.flatten() for tree in (gradient, product) for t in tree.values()])
            )
        return torch.stack(rows)

    def scale(self, factor: float) -> None:
        """Other numbers in the same memory."""
        theta, _, x = self.arguments
        for t in (*theta.values(), x):
            t.mul_(factor)


@pytest.mark.parametrize("name", MODELS)
class TestNetworks:
    """Gradients and Hessian products of many nodes at once."""

    def test_against_a_loop(self, name: str):
        problem = Curvature(name)
        actual, expected = problem.all().cpu(), problem.loop()
        for node in range(len(expected)):
            assert error(actual[node], expected[node]) <= 1e-5

    def test_twice_the_same_bits(self, name: str):
        problem = Curvature(name)
        assert torch.equal(problem.all(), problem.all())

    def test_types_under_autocast(self, name: str):
        problem = Curvature(name)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            actual = problem.all()
        assert actual.dtype == torch.float32
        assert error(actual.cpu(), problem.loop()) <= 0.1

    def test_a_recorded_graph_gives_the_same_bits(self, name: str):
        problem = Curvature(name)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                problem.all()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            recorded = problem.all()
        for factor in (1.0, 1.1, 0.7):
            problem.scale(factor)
            graph.replay()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                eager = problem.all()
            torch.cuda.synchronize()
            assert torch.equal(recorded, eager)
