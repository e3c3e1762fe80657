"""What of a network moves when it adapts, and where on a device its numbers live.

The layers before the first one that adaptation moves are the *body*: their parameters are constants
and their results take turns in two buffers. A convolution that is pooled is computed channel by
channel, so that what is not pooled yet takes the room of one; likewise what recurrent units are
given, step by step. From the first layer that moves on
every result keeps a buffer of its own, since the way back needs it. Activations work in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from fedmeta.core.errors import ModelError
from fedmeta.core.tree import Tree
from fedmeta.export.c.chain import chain_of
from fedmeta.export.c.layer_kinds import (
    Activation,
    Convolution,
    Layer,
    Linear,
    Pooling,
    Recurrent,
)
from fedmeta.models.meta_model import MetaModel


@dataclass(frozen=True)
class Part:
    """A tensor that adaptation moves, and where it begins among all of them."""

    name: str
    offset: int
    count: int


@dataclass(frozen=True)
class Plan:
    """A network on a device.

    Args:
        body: layers that do not change.
        rest: the layers from the first that adaptation moves.
        parts: the tensors that move, one after the other.
        inputs: numbers of a sample.
        outputs: numbers of an answer.
        samples: how many may be kept to decide on; 0: none are kept.
        int8: whether the body computes with whole numbers of 8 bits.
    """

    body: tuple[Layer, ...]
    rest: tuple[Layer, ...]
    parts: tuple[Part, ...]
    inputs: int
    outputs: int
    samples: int
    int8: bool

    @property
    def parameters(self) -> int:
        """Numbers that adaptation moves."""
        return sum(part.count for part in self.parts)

    @property
    def features(self) -> int:
        """Numbers that the body gives to the rest."""
        return self.body[-1].given if self.body else self.inputs

    @property
    def turns(self) -> tuple[int, int]:
        """Numbers in the two buffers of the body."""
        sizes, place = [self.inputs, 0], 0
        for stage in self.stages:
            if not isinstance(stage[0], Activation):
                place = 1 - place
                sizes[place] = max(sizes[place], stage[-1].given)
        return sizes[0], sizes[1]

    @property
    def channel(self) -> int:
        """Numbers of the largest channel that is not pooled yet, or of a step."""
        return max((parts(stage)[1] for stage in self.stages if len(stage) > 1), default=0)

    @property
    def stages(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers of the body: what is computed part by part together, others alone."""
        found: list[tuple[Layer, ...]] = []
        rest = self.body
        while rest:
            end = 1
            while isinstance(rest[0], Convolution) and isinstance(_at(rest, end), Activation):
                end += 1
            ends = {Convolution: Pooling, Linear: Recurrent}.get(type(rest[0]))
            end = end + 1 if ends is not None and isinstance(_at(rest, end), ends) else 1
            found.append(rest[:end])
            rest = rest[end:]
        return tuple(found)

    @property
    def results(self) -> tuple[int, ...]:
        """Numbers in the buffer of every result of the rest but the answer."""
        kept: list[int] = []
        for before, layer in pairwise((None, *self.rest)):
            if layer is not None and not in_place(before, layer):
                kept.append(layer.given)
        return tuple(kept[:-1])

    @property
    def head(self) -> Linear | None:
        """The layer that alone moves, where it is the last one and linear."""
        only = self.rest[0]
        return only if len(self.rest) == 1 and isinstance(only, Linear) and only.rows == 1 else None

    def offset(self, name: str | None) -> int | None:
        """Where a tensor begins among those that move; None: it does not move."""
        return next((part.offset for part in self.parts if part.name == name), None)


def in_place(before: Layer | None, layer: Layer) -> bool:
    """Whether a layer writes over what it is given: a second activation would lose the first's."""
    return isinstance(layer, Activation) and not isinstance(before, Activation)


def plan_of(model: MetaModel, samples: int = 0, int8: bool = False) -> Plan:
    """The plan of a model.

    Args:
        model: in float32 on the CPU.
        samples: how many are kept to decide on.
        int8: for a body of whole numbers.

    Raises:
        ModelError: names a layer that cannot be written.
    """
    layers = chain_of(model.module(), model.input_shape)
    moves = model.adaptation.moves(model.theta)
    parts, offset = [], 0
    for name, leaf in model.theta.items():
        if name in moves:
            parts.append(Part(name, offset, leaf.numel()))
            offset += leaf.numel()
    moving = [place for place, layer in enumerate(layers) if moves & {*tensors_of(layer)}]
    used = {name for layer in layers for name in tensors_of(layer)}
    if missing := sorted(moves - used):
        raise ModelError(
            f"{missing[0]} adapts, but no layer of the chain has it", "export the model to ONNX"
        )
    first = moving[0]
    for layer in layers:
        _check_windows(layer)
    return Plan(
        layers[:first],
        layers[first:],
        tuple(parts),
        math.prod(model.input_shape),
        model.task.outputs,
        samples,
        int8,
    )


def tensors_of(layer: Layer) -> tuple[str, ...]:
    """Names of a layer's parameters."""
    names = (getattr(layer, "weight", None), getattr(layer, "bias", None))
    return tuple(name for name in names if name is not None)


def tensors(model: MetaModel) -> Tree:
    """All parameters and constants of a model by the names that layers call them."""
    return {**model.network.constants, **model.theta}


def _at(layers: tuple[Layer, ...], place: int) -> Layer | None:
    return layers[place] if place < len(layers) else None


def parts(stage: tuple[Layer, ...]) -> tuple[int, int]:
    """How many parts a stage is computed in, and numbers of each before the last layer."""
    first = stage[0]
    if isinstance(first, Convolution):
        return first.frame.out_channels, math.prod(first.frame.out_space)
    assert isinstance(first, Linear)
    return first.rows, first.outputs


def _check_windows(layer: Layer) -> None:
    """Refuse a pooling with a window that has no pixel, of which the maximum would be infinite."""
    if not isinstance(layer, Pooling):
        return
    frame = layer.frame
    for axis in (0, 1):
        for place in range(frame.out_space[axis]):
            start = place * frame.stride[axis] - frame.padding[axis]
            taps = (start + tap * frame.dilation[axis] for tap in range(frame.kernel[axis]))
            if not any(0 <= tap < frame.space[axis] for tap in taps):
                raise ModelError(
                    f"layer {layer.name!r} pools a window that lies in its padding alone",
                    "use less padding or dilation",
                )
