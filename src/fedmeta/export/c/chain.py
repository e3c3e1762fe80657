"""A network as a chain of layers with known shapes, each of a kind that C code is written for.

The network is called once. Every layer must get exactly what the one before it gave: what is
computed between layers (a sum of two ways, a function that is no layer) would be lost, so it is
refused, by name. A series is an image of one row. A recurrent network of ours, which is no such
chain in PyTorch, is read as one of products, states and their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedmeta.core.errors import ModelError
from fedmeta.engine.nodewise.geometry import Window
from fedmeta.export.c.layer_kinds import (
    Activation,
    Convolution,
    Frame,
    Layer,
    Linear,
    Mean,
    Normalisation,
    Pair,
    Pooling,
    Recurrent,
)
from fedmeta.models.keyed_dropout import KeyedDropout
from fedmeta.models.networks import SamePool
from fedmeta.models.recurrent import RecurrentLayer, RecurrentNetwork

Shape = tuple[int, ...]


def chain_of(module: nn.Module, shape: Shape) -> tuple[Layer, ...]:
    """The layers of a network in evaluation mode, in the order in which they are called.

    Args:
        module: the network.
        shape: of one sample.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> [type(layer).__name__ for layer in chain_of(network, (1, 2, 2))]
        ['Linear', 'Activation', 'Linear']

    Raises:
        ModelError: names the first layer that cannot be written.
    """
    names = {id(each): name for name, each in module.named_parameters()}
    names |= {id(each): name for name, each in module.named_buffers()}
    if isinstance(module, RecurrentNetwork):
        return _recurrent(module, shape, names)
    found: list[Layer] = []
    for name, layer, taken, given in _calls(module, shape):
        read = _READERS.get(type(layer))
        if read is None:
            raise _unwritten(name, layer, "there is no C code for layers of this kind")
        try:
            made = read(layer, name, taken, given, names)
        except _UnsupportedError as error:
            raise _unwritten(name, layer, str(error)) from None
        if made is not None:
            found.append(made)
    return tuple(found)


def results_of(module: nn.Module, inputs: Tensor) -> list[Tensor]:
    """What the layers of a chain give for some samples, in the order of `chain_of`.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU())
        >>> [each.shape for each in results_of(network, torch.zeros(5, 2, 2))]
        [torch.Size([5, 3]), torch.Size([5, 3])]
    """
    found: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda _layer, _given, result: found.append(result.clone()))
        for layer in module.modules()
        if not list(layer.children()) and _READERS.get(type(layer)) is not _nothing
    ]
    try:
        with torch.no_grad():
            module(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


class _UnsupportedError(Exception):
    """A setting of a layer that C code is not written for."""


def _unwritten(name: str, layer: nn.Module, why: str) -> ModelError:
    return ModelError(
        f"layer {name!r} ({type(layer).__name__}) cannot be written in C: {why}",
        "use layers like those of the built-in networks, one after the other, or export to ONNX",
    )


def _calls(module: nn.Module, shape: Shape) -> list[tuple[str, nn.Module, Shape, Shape]]:
    """Name, layer and shapes in and out of every call; refuses what is computed in between."""
    calls: list[tuple[str, nn.Module, Shape, Shape]] = []
    inputs = torch.zeros(1, *shape)
    last: list[Tensor] = [inputs]  # all that was made: storage that is kept is not used again
    version = [inputs._version]

    def same(tensor: Tensor) -> bool:
        kept = tensor.data_ptr() == last[-1].data_ptr() and tensor.numel() == last[-1].numel()
        return kept and tensor._version == version[0]

    def between(where: str) -> ModelError:
        return ModelError(
            f"something other than a layer is computed {where}",
            "make the network of layers alone, one after the other, or export to ONNX",
        )

    def before(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
            if len(arguments) != 1 or not same(arguments[0]):
                after = f"layer {calls[-1][0]!r}" if calls else "the input"
                raise between(f"between {after} and layer {name!r} ({type(layer).__name__})")

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
            if not isinstance(result, Tensor):
                raise _unwritten(name, layer, "it gives more than one tensor")
            calls.append((name, layer, tuple(arguments[0].shape[1:]), tuple(result.shape[1:])))
            last.append(result)
            version[0] = result._version

        return hook

    leaves = [(name, each) for name, each in module.named_modules() if not list(each.children())]
    handles = [each.register_forward_pre_hook(before(name)) for name, each in leaves]
    handles += [each.register_forward_hook(after(name)) for name, each in leaves]
    try:
        with torch.no_grad():
            outputs = module(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not same(outputs):
        raise between(f"after layer {calls[-1][0]!r}")
    return calls


Names = dict[int, str]


def _name(tensor: Tensor | None, names: Names) -> str | None:
    return None if tensor is None else names[id(tensor)]


def _linear(layer: Any, name: str, taken: Shape, given: Shape, names: Names) -> Layer:
    rows = math.prod(taken[:-1])
    weight, bias = names[id(layer.weight)], _name(layer.bias, names)
    return Linear(name, rows, taken[-1], given[-1], weight, bias)


def _convolution(layer: Any, name: str, taken: Shape, given: Shape, names: Names) -> Layer:
    if layer.padding_mode != "zeros":
        raise _UnsupportedError(f"its padding is {layer.padding_mode!r}, not zeros")
    kernel, stride, dilation = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.dilation)
    if layer.padding == "valid":
        padding = (0, 0)
    elif layer.padding == "same":  # the odd one goes below and to the right
        rows, columns = (
            step * (taps - 1) // 2 for step, taps in zip(dilation, kernel, strict=True)
        )
        padding = (rows, columns)
    else:
        padding = _pair(layer.padding, 0)
    frame = Frame(
        taken[0], _space(taken), given[0], _space(given), kernel, stride, padding, dilation,
        layer.groups,
    )  # fmt: skip
    return Convolution(name, frame, names[id(layer.weight)], _name(layer.bias, names))


def _max_pool(layer: Any, name: str, taken: Shape, given: Shape, _names: Names) -> Layer:
    dilation = _pair(_listed(layer.dilation, taken))
    return Pooling(name, _pool_frame(layer, taken, given, dilation), "max")


def _average_pool(layer: Any, name: str, taken: Shape, given: Shape, _names: Names) -> Layer:
    divisor = getattr(layer, "divisor_override", None) or 0
    frame = _pool_frame(layer, taken, given, (1, 1))
    return Pooling(name, frame, "average", layer.count_include_pad, divisor)


def _pool_frame(layer: Any, taken: Shape, given: Shape, dilation: Pair) -> Frame:
    size, stride = (_pair(_listed(each, taken)) for each in (layer.kernel_size, layer.stride))
    padding = _pair(_listed(layer.padding, taken), 0)
    space, out = _space(taken), _space(given)
    return Frame(taken[0], space, given[0], out, size, stride, padding, dilation, taken[0])


def _same_pool(layer: Any, name: str, taken: Shape, given: Shape, _names: Names) -> Layer:
    space = _space(taken)
    size, stride = ((3, 3), (2, 2)) if len(taken) == 3 else ((1, 3), (1, 2))
    padding = (space[0] % stride[0], space[1] % stride[1])
    out = Window(size, stride, padding, (1, 1), ceil_mode=True).outputs(space)
    frame = Frame(taken[0], space, given[0], out, size, stride, padding, (1, 1), taken[0])
    return Pooling(name, frame, layer.kind)


def _recurrent(network: RecurrentNetwork, shape: Shape, names: Names) -> tuple[Layer, ...]:
    """Of series: products with all steps at once, then states, layer by layer."""
    if len(shape) != 2:
        raise _unwritten("embedding", network.embedding, "it looks up tokens")
    found: list[Layer] = []
    taken = shape
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, RecurrentLayer)  # a ModuleList does not say what it holds
        name, width = f"layers.{number}", layer.state.in_features
        found.append(_linear(layer.inputs, f"{name}.inputs", taken, (taken[0], 3 * width), names))
        weight, bias = names[id(layer.state.weight)], names[id(layer.state.bias)]
        found.append(Recurrent(f"{name}.state", taken[0], width, weight, bias))
        taken = (taken[0], width)
    head = network.head
    mean = Mean("the mean of all steps", *taken)
    return (*found, mean, _linear(head, "head", taken[1:], (head.out_features,), names))


def _adaptive_average(_layer: Any, name: str, taken: Shape, given: Shape, _names: Names) -> Layer:
    space, out = _space(taken), _space(given)
    if any(size % parts for size, parts in zip(space, out, strict=True)):
        raise _UnsupportedError(f"{out} windows do not divide {space} pixels evenly")
    size = (space[0] // out[0], space[1] // out[1])
    frame = Frame(taken[0], space, taken[0], out, size, size, (0, 0), (1, 1), taken[0])
    return Pooling(name, frame, "average")


def _layer_norm(layer: Any, name: str, taken: Shape, _given: Shape, names: Names) -> Layer:
    size = math.prod(layer.normalized_shape)
    weight, bias = _name(layer.weight, names), _name(layer.bias, names)
    return Normalisation(name, math.prod(taken) // size, size, 1, size, layer.eps, weight, bias)


def _group_norm(layer: Any, name: str, taken: Shape, _given: Shape, names: Names) -> Layer:
    groups = getattr(layer, "num_groups", taken[0])  # an instance norm has one for each channel
    size, spread = math.prod(taken) // groups, math.prod(taken[1:])
    weight, bias = _name(layer.weight, names), _name(layer.bias, names)
    return Normalisation(name, groups, size, spread, taken[0], layer.eps, weight, bias)


def _activation(kind: str, slope: str | None = None) -> Callable[..., Layer]:
    def read(layer: Any, name: str, taken: Shape, _given: Shape, _names: Names) -> Layer:
        number = 0.0 if slope is None else float(getattr(layer, slope))
        if number < 0:
            raise _UnsupportedError(f"its {slope} is negative")
        return Activation(name, kind, math.prod(taken), number)

    return read


def _nothing(*_: Any) -> None:
    """A layer that moves no number."""


def _listed(value: Any, shape: Shape) -> Shape:
    """One number per axis of a sample that has `shape`."""
    return (value,) * (len(shape) - 1) if isinstance(value, int) else tuple(value)


def _pair(value: Shape, first: int = 1) -> Pair:
    """(rows, columns) of a pair, or of the single number of a series, which has one row."""
    return (first, value[0]) if len(value) == 1 else (value[0], value[1])


def _space(shape: Shape) -> Pair:
    """Rows and columns of a sample's shape, (channels, columns) or (channels, rows, columns)."""
    return (1, shape[1]) if len(shape) == 2 else (shape[1], shape[2])


_READERS: dict[type, Callable[..., Layer | None]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _convolution),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), _max_pool),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d), _average_pool),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), _adaptive_average),
    SamePool: _same_pool,
    nn.LayerNorm: _layer_norm,
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d), _group_norm),
    nn.ELU: _activation("elu", "alpha"),
    nn.LeakyReLU: _activation("leaky_relu", "negative_slope"),
    nn.ReLU: _activation("relu"),
    nn.ReLU6: _activation("relu6"),
    nn.Sigmoid: _activation("sigmoid"),
    nn.Tanh: _activation("tanh"),
    **dict.fromkeys((nn.Flatten, nn.Unflatten, nn.Identity, KeyedDropout), _nothing),
}
