from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vjp, vmap

from fedmeta.engine.nodewise import convolution as module
from fedmeta.engine.nodewise import kernels, matrix_products, torch_convolution
from fedmeta.engine.nodewise.convolution import convolution
from fedmeta.engine.nodewise.geometry import Geometry
from nodewise.loops import close, evaluate_by, randn

BACKENDS = {"torch": torch_convolution.evaluate, "products": matrix_products.evaluate}


@dataclass(frozen=True)
class Problem:
    """One geometry, and operands (nodes or 1, …) for each of its slots."""

    geometry: Geometry
    x: Tensor
    w: Tensor
    g: Tensor

    def torch_output(self, x: Tensor, w: Tensor) -> Tensor:
        geometry = self.geometry
        return torch.convolution(
            x,
            w,
            None,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            geometry.transposed,
            geometry.output_padding,
            geometry.groups,
        )


def problem(
    inputs: tuple[int, ...],
    kernel: tuple[int, ...],
    nodes: tuple[int, int, int] = (3, 3, 3),
    batch: int = 2,
    **motion: int | tuple[int, ...] | bool,
) -> Problem:
    """A random one; `nodes` are those of x, w and g, 1 where they share it."""
    x, w = randn(nodes[0], batch, *inputs, seed=1), randn(nodes[1], *kernel, seed=2)
    geometry = Geometry.of(x[0], w[0], **motion)
    empty = Problem(geometry, x, w, x)
    g = randn(nodes[2], *empty.torch_output(x[0], w[0]).shape, seed=3)
    return Problem(geometry, x, w, g)


@st.composite
def problems(draw: st.DrawFn, plain: bool = True) -> Problem:
    axes = draw(st.integers(1, 3))
    groups = 1 if plain else draw(st.integers(1, 3))
    transposed = not plain and draw(st.booleans())

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    taps, stride, dilation = each(1, 5 if axes < 3 else 3), each(1, 3), each(1, 2)
    padding, more = each(0, 3), each(0, 4)
    reach = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
    if transposed:
        spare = zip(stride, dilation, strict=True)
        output_padding = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in spare)
        # enough room that something is left of the output
        sizes = zip(reach, padding, stride, more, strict=True)
        space = [max(1, -((r - 2 * p) // s) + 1) + m for r, p, s, m in sizes]
    else:
        output_padding = (0,) * axes
        sizes = zip(reach, padding, more, strict=True)
        space = [max(1, r + 1 - 2 * p) + m for r, p, m in sizes]
    inside, outside = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels = (groups * inside, outside) if transposed else (groups * outside, inside)
    nodes = draw(st.integers(1, 3))
    shared = [draw(st.booleans()) for _ in range(3)]
    return problem(
        (groups * inside, *space),
        (*channels, *taps),
        tuple(1 if one else nodes for one in shared),
        draw(st.integers(1, 2)),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=output_padding,
    )


def check_slots(evaluate: object, case: Problem) -> None:
    """Each of the three slots, node by node by torch's own autograd."""
    x, w, g = case.x, case.w, case.g
    for free, first, second in (("g", x, w), ("x", w, g), ("w", x, g)):
        nodes = max(len(first), len(second))
        expected = []
        for node in range(nodes):
            xi = x[node % len(x)].clone().requires_grad_()
            wi = w[node % len(w)].clone().requires_grad_()
            output = case.torch_output(xi, wi)
            if free == "g":
                expected.append(output.detach())
            else:
                by = xi if free == "x" else wi
                expected += torch.autograd.grad(output, by, g[node % len(g)])
        actual = evaluate(free, first, second, case.geometry)
        close(actual, torch.stack(expected))


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=problems())
def test_slots(backend: str, case: Problem):
    check_slots(BACKENDS[backend], case)


@given(case=problems(plain=False))
def test_slots_of_grouped_and_transposed(case: Problem):
    check_slots(torch_convolution.evaluate, case)


NAMED = {
    "non-square": problem((2, 7, 4), (3, 2, 2, 3), padding=(0, 1)),
    "stride leaves pixels over": problem((2, 8, 7), (3, 2, 3, 3), stride=(3, 2), padding=1),
    "padding beyond the kernel": problem((1, 4, 4), (2, 1, 1, 2), padding=3),
    "dilated by axis": problem((2, 9, 8), (1, 2, 3, 2), dilation=(2, 3), padding=(2, 0)),
    "one pixel": problem((3, 1, 1), (2, 3, 1, 1), batch=1),
    "one node": problem((3, 5, 5), (2, 3, 3, 3), (1, 1, 1)),
    "sequence": problem((3, 9), (2, 3, 4), stride=2, padding=1),
    "volume": problem((2, 4, 3, 5), (3, 2, 2, 3, 1), padding=(1, 1, 0), stride=(1, 2, 1)),
    "shared weight": problem((2, 5, 5), (3, 2, 3, 3), (3, 1, 3)),
    "shared input": problem((2, 5, 5), (3, 2, 3, 3), (1, 3, 3)),
    "shared factor": problem((2, 5, 5), (3, 2, 3, 3), (3, 3, 1)),
}
ONLY_TORCH = {
    "grouped": problem((4, 5, 5), (6, 2, 3, 3), groups=2, padding=1),
    "depthwise": problem((3, 6, 5), (3, 1, 3, 3), groups=3, stride=2),
    "depthwise shared": problem((3, 6, 5), (3, 1, 3, 3), (3, 1, 3), groups=3),
    "transposed": problem(
        (2, 3, 4), (2, 3, 3, 2), transposed=True, stride=2, output_padding=1, padding=1
    ),
    "transposed grouped": problem(
        (4, 3, 4), (4, 3, 3, 3), transposed=True, groups=2, stride=(2, 3), output_padding=(0, 1)
    ),
    "transposed shared": problem((2, 3, 3), (2, 1, 3, 3), (3, 1, 3), transposed=True, stride=2),
    "transposed sequence": problem((2, 4), (2, 3, 3), transposed=True, stride=3, dilation=2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMED)
def test_named_geometries(name: str, backend: str):
    check_slots(BACKENDS[backend], NAMED[name])


@pytest.mark.parametrize("name", ONLY_TORCH)
def test_geometries_of_torch_alone(name: str):
    check_slots(torch_convolution.evaluate, ONLY_TORCH[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_layout_in_memory_does_not_matter(backend: str):
    case = NAMED["non-square"]
    crooked = Problem(
        case.geometry,
        *(t.transpose(0, -1).contiguous().transpose(0, -1) for t in (case.x, case.w, case.g)),
    )
    assert not crooked.x.is_contiguous()
    check_slots(BACKENDS[backend], crooked)


@given(case=problems(plain=False))
def test_outputs_are_those_of_torch(case: Problem):
    if not case.geometry.transposed:
        assert case.geometry.outputs == case.g.shape[2:]
    assert case.geometry.is_plain == (case.geometry.groups == 1 and not case.geometry.transposed)


class TestRule:
    """Which kernel `evaluate` takes on a CPU, and what it makes of a bias."""

    @pytest.mark.parametrize("name", [*NAMED, *ONLY_TORCH])
    def test_native_on_a_cpu(self, name: str):
        case = {**NAMED, **ONLY_TORCH}[name]
        actual = kernels.evaluate("g", case.x, case.w, case.geometry)
        assert torch.equal(actual, torch_convolution.evaluate("g", case.x, case.w, case.geometry))

    @pytest.mark.parametrize("sets", [1, 3])
    @pytest.mark.parametrize("name", ["sequence", "shared weight", "volume"])
    def test_bias(self, name: str, sets: int):
        case = NAMED[name]
        bias = randn(sets, case.geometry.outputs[0])
        actual = kernels.evaluate("g", case.x, case.w, case.geometry, bias)
        plain = kernels.evaluate("g", case.x, case.w, case.geometry)
        for node in range(3):
            image = bias[node % sets].reshape(-1, *[1] * (case.x.ndim - 3))
            close(actual[node], plain[node] + image)

    def test_bias_of_each_node_where_all_else_is_shared(self):
        case = problem((2, 5, 5), (3, 2, 3, 3), (1, 1, 3))
        bias = randn(4, 3)
        actual = kernels.evaluate("g", case.x, case.w, case.geometry, bias)
        expected = case.torch_output(case.x[0], case.w[0]) + bias[:, None, :, None, None]
        close(actual, expected)

    @pytest.mark.parametrize("axes", [1, 2, 3])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_weight_and_bias(self, axes: int, groups: int):
        space = tuple(range(4, 4 + axes))
        case = problem((4, *space), (6, 4 // groups, *[3] * axes), (3, 1, 3), groups=groups)
        g = randn(3, case.x.shape[1], *case.geometry.outputs)
        by_weight, by_bias = kernels.weight_and_bias(case.x, g, case.geometry)
        close(by_weight, kernels.evaluate("w", case.x, g, case.geometry))
        close(by_bias, torch.einsum("nbk...->nk", g))


@pytest.fixture(params=BACKENDS)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "evaluate", evaluate_by(request.param))


def bent(x: Tensor, w: Tensor, b: Tensor, layer: object) -> Tensor:
    """A scalar with derivatives of every order by all three."""
    return (layer(x, w, b).sin() * 1.5).sum()


def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return convolution(x, w, b, Geometry.of(x, w, stride=2, padding=1))


def theirs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.conv2d(x, w, b, stride=2, padding=1)


def by_all(layer: object) -> object:
    return grad(lambda x, w, b: bent(x, w, b, layer), argnums=(0, 1, 2))


def twice(layer: object) -> object:
    """Gradient, and its pull-back of itself: every second derivative takes part."""

    def both(x: Tensor, w: Tensor, b: Tensor) -> object:
        first, pull = vjp(by_all(layer), x, w, b)
        return first, pull(tuple(t.cos() for t in first))

    return both


def node(operands: list[Tensor], in_dims: tuple[int | None, ...], place: int) -> list[Tensor]:
    return [
        t if dim is None else t.select(dim, place) for t, dim in zip(operands, in_dims, strict=True)
    ]


@pytest.mark.usefixtures("_backend")
class TestDerivatives:
    """By input, weight and bias, where each may be of its own node or one for all."""

    x, w, b = randn(3, 2, 2, 6, 5, seed=1), randn(3, 4, 2, 3, 3, seed=2), randn(3, 4, seed=3)

    @pytest.mark.parametrize("own", [o for o in product((True, False), repeat=3) if any(o)])
    def test_some_mapped(self, own: tuple[bool, bool, bool]):
        in_dims = tuple(0 if mine else None for mine in own)
        operands = [
            t if mine else t[0] for t, mine in zip((self.x, self.w, self.b), own, strict=True)
        ]
        actual = vmap(twice(ours), in_dims=in_dims)(*operands)
        for place in range(3):
            expected = twice(theirs)(*node(operands, in_dims, place))
            for order in range(2):
                close(tuple(t[place] for t in actual[order]), expected[order])

    def test_mapped_axes_need_not_be_first(self):
        operands = [self.x.movedim(0, 2), self.w.movedim(0, 3), self.b.movedim(0, 1)]
        in_dims = (2, 3, 1)
        actual = vmap(ours, in_dims=in_dims, out_dims=1)(*operands)
        for place in range(3):
            close(actual.select(1, place), theirs(*node(operands, in_dims, place)))

    def test_without_vmap(self):
        operands = self.x[0], self.w[0], self.b[0]
        close(ours(*operands), theirs(*operands))
        close(twice(ours)(*operands), twice(theirs)(*operands))

    def test_shared_operands_get_the_sum_over_nodes(self):
        def total(layer: object, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            losses = vmap(lambda xi: bent(xi, w, b, layer))(x)
            return (losses * torch.tensor([1.0, 2.0, 3.0])).sum()

        def summed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return torch.stack([(i + 1) * bent(x[i], w, b, theirs) for i in range(3)]).sum()

        operands = [t.clone().requires_grad_() for t in (self.x, self.w[0], self.b[0])]
        first = torch.autograd.grad(total(ours, *operands), operands, create_graph=True)
        expected = torch.autograd.grad(summed(*operands), operands, create_graph=True)
        close(first, expected)
        again = torch.autograd.grad(torch.stack([t.sin().sum() for t in first]).sum(), operands)
        twin = torch.autograd.grad(torch.stack([t.sin().sum() for t in expected]).sum(), operands)
        close(again, twin)

    def test_nested_vmap(self):
        x, w, b = randn(2, 3, 2, 2, 6, 5), randn(3, 4, 2, 3, 3), randn(2, 4)
        # x of each repeat and node, w of each node, b of each repeat
        inner = vmap(twice(ours), in_dims=(0, 0, None))
        actual = vmap(inner, in_dims=(0, None, 0))(x, w, b)
        for repeat in range(2):
            for place in range(3):
                expected = twice(theirs)(x[repeat, place], w[place], b[repeat])
                for order in range(2):
                    close(tuple(t[repeat, place] for t in actual[order]), expected[order])

    def test_nested_vmap_of_shared_weights(self):
        x, w, b = randn(2, 3, 2, 2, 6, 5), self.w[0], self.b[0]
        total = grad(lambda w: vmap(vmap(lambda xi: bent(xi, w, b, ours)))(x).sum())(w)
        expected = grad(lambda w: bent(x.flatten(0, 2), w, b, theirs))(w)
        close(total, expected)

    def test_third_derivative(self):
        def third(layer: object) -> object:
            def bend(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
                first, second = twice(layer)(x, w, b)
                return torch.stack(
                    [(p * q).sum() for p, q in zip(first, second, strict=True)]
                ).sum()

            return grad(bend, argnums=(0, 1, 2))

        actual = vmap(third(ours))(self.x, self.w, self.b)
        for place in range(3):
            expected = third(theirs)(self.x[place], self.w[place], self.b[place])
            close(tuple(t[place] for t in actual), expected)

    def test_without_bias(self):
        geometry = Geometry.of(self.x[0], self.w[0])

        def loss(x: Tensor, w: Tensor) -> Tensor:
            return convolution(x, w, None, geometry).sin().sum()

        actual = vmap(grad(loss, argnums=(0, 1)))(self.x, self.w)
        for place in range(3):
            plain = grad(lambda x, w: torch.conv2d(x, w).sin().sum(), argnums=(0, 1))
            expected = plain(self.x[place], self.w[place])
            close(tuple(t[place] for t in actual), expected)


def test_only_what_is_needed_is_computed(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    evaluate = evaluate_by("torch")

    def spy(free: str, *rest: object) -> Tensor:
        asked.append(free)
        return evaluate(free, *rest)

    def both(*arguments: object) -> tuple[Tensor, Tensor]:
        asked.append("w and b")
        return kernels.weight_and_bias(*arguments)

    monkeypatch.setattr(module, "evaluate", spy)
    monkeypatch.setattr(module, "weight_and_bias", both)
    x, w, b = randn(2, 2, 6, 5), randn(4, 2, 3, 3), randn(4)
    grad(lambda w: bent(x, w, b, ours))(w)
    assert asked == ["g", "w and b"]
    asked.clear()
    grad(lambda x: bent(x, w, b, ours))(x)
    assert asked == ["g", "x"]


def test_mapped_and_node_axes_become_one():
    mapped, own, shared = randn(1, 2, 4, 3), randn(2, 5), randn(1, 5)
    folded, shape = module._fold(3, (3, None, None), mapped, own, shared)
    assert shape == (3, 2)
    assert torch.equal(folded[0], mapped.movedim(3, 0).expand(3, 2, 2, 4).flatten(0, 1))
    assert torch.equal(folded[1], torch.cat([own] * 3))
    assert folded[2] is shared
