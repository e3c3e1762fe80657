"""The network's part of model.c: its frames, its constants, and the calls of its layers.

body      raw input → features, by layers that do not change
forward   features, parameters → answer
backward  slope of the loss by the answer → sums of gradients by the parameters
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from fedmeta.core.tree import Tree
from fedmeta.export.c.layer_kinds import (
    Activation,
    Convolution,
    Frame,
    Layer,
    Linear,
    Mean,
    Normalisation,
    Pooling,
    Recurrent,
)
from fedmeta.export.c.plan import Plan, in_place, parts
from fedmeta.export.c.writing import array, comment, number, piece

_SLOPED = ("elu", "leaky_relu")
_NAMES = {"tanh": "hyperbolic"}


@dataclass(frozen=True)
class Call:
    """A layer of float32, with the names of what it reads.

    Args:
        layer: which.
        frame: name of its frame, if it has one.
        weight: C expression of its weights, or NULL.
        bias: likewise.
        sums: expressions of the sums of gradients by both, NULL where they do not move.
    """

    layer: Layer
    frame: str
    weight: str
    bias: str
    sums: tuple[str, str]

    @property
    def needs(self) -> tuple[str, ...]:
        """Pieces of code of the way forward, in order."""
        match self.layer:
            case Pooling(kind="max"):
                return ("pool_max_place", "pool_max")
            case Pooling():
                return ("pool_average_part", "pool_average")
            case Activation(kind=kind):
                return (_NAMES.get(kind, kind),)
            case Linear():
                return ("linear",)
            case Convolution():
                return ("inside", "convolve")
            case Normalisation():
                return ("mean_of", "normalise")
            case Recurrent():
                return ("recur",)
            case Mean():
                return ("mean_rows",)

    def forward(self, x: str, y: str, channel: int | None = None) -> str:
        """The call that makes y of x; an activation makes y of itself.

        Args:
            x, y: C expressions of buffers.
            channel: numbers of a channel, where only channel o is computed (of what goes step by
                step: only step o); None: all.
        """
        given = f"{self.weight}, {self.bias}, {x}, {y}"
        match self.layer:
            case Linear(inputs=inputs, outputs=outputs) if channel is not None:
                one = f"{self.weight}, {self.bias}, {x} + o * {inputs}, {y}"
                return f"linear(1, {inputs}, {outputs}, {one});"
            case Recurrent(steps=steps, width=width):
                some = f"0, {steps}" if channel is None else "o, o + 1"
                return f"recur({some}, {width}, {given});"
            case Mean(rows=rows, given=count):
                return f"mean_rows({rows}, {count}, {x}, {y});"
            case Pooling(kind=kind, frame=frame):
                count = frame.channels if channel is None else 1
                how = "" if kind == "max" else f"{self.layer.border:d}, {self.layer.divisor}, "
                return f"pool_{kind}(&{self.frame}, {count}, {how}{x}, {y});"
            case Activation(given=count):
                return f"{self.needs[0]}({channel or count}, {self._slope}{y});"
            case Convolution(frame=frame):
                some = f"0, {frame.out_channels}" if channel is None else "o, o + 1"
                return f"convolve(&{self.frame}, {some}, {given});"
            case _:
                return f"{self.needs[-1]}({self._shape}, {given});"

    def backward(self, x: str, y: str, g: str, by_x: str) -> str:
        """The call that makes dL/dx of g = dL/dy, where y is made of x; an activation in place."""
        both = f"{self.sums[0]}, {self.sums[1]}"
        match self.layer:
            case Pooling(kind="max"):
                return f"pool_max_backward(&{self.frame}, {x}, {g}, {by_x});"
            case Pooling(border=border, divisor=divisor):
                return f"pool_average_backward(&{self.frame}, {border:d}, {divisor}, {g}, {by_x});"
            case Activation(given=count):
                return f"{self.needs[0]}_backward({count}, {self._slope}{y}, {g});"
            case Convolution():
                given = f"{self.weight}, {x}, {g}"
                return f"convolve_backward(&{self.frame}, {given}, {both}, {by_x});"
            case Recurrent(steps=steps, width=width):
                given = f"{steps}, {width}, {self.weight}, {self.bias}, {x}, {y}, {g}"
                return f"recur_backward({given}, {both}, {by_x});"
            case Mean(rows=rows, given=count):
                return f"mean_rows_backward({rows}, {count}, {g}, {by_x});"
            case _:
                given = f"{self._shape}, {self.weight}, {x}, {g}"
                return f"{self.needs[-1]}_backward({given}, {both}, {by_x});"

    @property
    def _slope(self) -> str:
        sloped = isinstance(self.layer, Activation) and self.layer.kind in _SLOPED
        return f"{number(self.layer.slope)}, " if sloped else ""  # type: ignore[union-attr]

    @property
    def _shape(self) -> str:
        match self.layer:
            case Linear(rows=rows, inputs=inputs, outputs=outputs):
                return f"{rows}, {inputs}, {outputs}"
            case Normalisation(rows=rows, size=size, spread=spread, scales=scales, epsilon=small):
                return f"{rows}, {size}, {spread}, {scales}, {number(small)}"
            case _:
                raise AssertionError(self.layer)


@dataclass(frozen=True)
class Network:
    """The calls of all layers of a plan."""

    plan: Plan
    calls: tuple[Call, ...]

    @classmethod
    def of(cls, plan: Plan) -> Network:
        """Every layer with the names that its frame and its parameters have in C."""
        calls = []
        for place, layer in enumerate((*plan.body, *plan.rest), start=1):
            weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
            expressions, sums = [], []
            for name, role in ((weight, "weight"), (bias, "bias")):
                offset = plan.offset(name)
                own = "NULL" if name is None else f"{role}_{place}"
                expressions.append(own if offset is None else _at("p", offset))
                sums.append("NULL" if offset is None else _at("sums", offset))
            frame = f"frame_{place}" if hasattr(layer, "frame") else ""
            both = expressions[0], expressions[1]
            calls.append(Call(layer, frame, *both, (sums[0], sums[1])))
        return cls(plan, tuple(calls))

    @property
    def frames(self) -> str:
        """The frames of convolutions and poolings."""
        framed = [call for call in self.calls if call.frame]
        texts = [_frame(call.frame, call.layer) for call in framed]
        return "\n".join([piece("frame"), *texts]) if framed else ""

    def constants(self, values: Tree, calls: tuple[Call, ...]) -> list[str]:
        """The parameters of some layers that do not move, as arrays."""
        found = []
        for call in calls:
            named = zip((call.weight, call.bias), _both(call.layer), strict=True)
            for place, name in named:
                if name is not None and not place.startswith("p"):
                    value = values[name].numpy().astype(np.float32)
                    shape = " x ".join(map(str, value.shape))
                    found.append(array("float", place, value, f"{comment(name)}: {shape}"))
        return found

    def forward(self) -> str:
        """`forward`: the rest of the network."""
        lines, x = [], "x"
        for (before, call), y in zip(self._pairs(), self._results(), strict=True):
            if isinstance(call.layer, Activation) and not in_place(before, call.layer):
                lines.append(f"memcpy({y}, {x}, sizeof {y});")
            lines.append(call.forward(x, y))
            x = y
        about = (
            "/* The layers that adaptation moves, and those after them: features to an answer. */"
        )
        return function(about, "static void forward(const float *x, const float *p)", lines)

    def backward(self) -> str:
        """`backward`: the same from its end to its beginning."""
        lines, results = [], ["x", *self._results()]
        g, free = "answer_slope", ["down_a", "down_b"]
        rest = self.calls[len(self.plan.body) :]
        for place in reversed(range(len(rest))):
            call, x, y = rest[place], results[place], results[place + 1]
            if isinstance(call.layer, Activation):
                lines.append(call.backward(x, y, g, ""))
                continue
            by_x = free[0] if place > 0 else "NULL"
            lines.append(call.backward(x, y, g, by_x))
            g, free = by_x, free[::-1]
        if not re.search(r"\bp\b", " ".join(lines)):
            lines.append("(void)p;")
        about = "/* Adds the gradients of one sample, from the slope of its loss by the answer. */"
        return function(about, "static void backward(const float *x, const float *p)", lines)

    def body(self, unscaled: str) -> str:
        """`body`: raw input to features, by turns in two buffers."""
        about = "/* The layers that do not change: a raw input to features. */"
        lines = [unscaled, *body_lines(self.plan, self.calls)]
        return function(about, "static void body(const float *input)", lines)

    @property
    def features(self) -> str:
        """The buffer in which the body leaves the features."""
        moves = sum(not isinstance(stage[0], Activation) for stage in self.plan.stages)
        return "ab"[moves % 2]

    @property
    def gradients(self) -> int:
        """Numbers in each of the two buffers of the way back."""
        sizes = self.plan.results
        return max(sizes, default=0)

    def _pairs(self) -> list[tuple[Layer | None, Call]]:
        rest = self.calls[len(self.plan.body) :]
        return [(before, call) for before, call in zip((None, *self.plan.rest), rest, strict=False)]

    def _results(self) -> list[str]:
        """The buffer that every layer of the rest writes to."""
        names: list[str] = []
        count = 0
        for before, layer in pairwise((None, *self.plan.rest)):
            assert layer is not None
            count += not in_place(before, layer)
            names.append(f"result_{count}")
        return ["answer" if name == names[-1] else name for name in names]


class Written(Protocol):
    """A layer as a call."""

    def forward(self, x: str, y: str, channel: int | None = None) -> str:
        """The call that makes y of x."""
        ...


def body_lines(plan: Plan, calls: Sequence[Written]) -> list[str]:
    """The calls of the body, from buffer a on, by turns in two buffers.

    Args:
        plan: of the network.
        calls: its layers, in order.
    """
    lines, here, there, place = [], "a", "b", 0
    for stage in plan.stages:
        some = calls[place : place + len(stage)]
        place += len(stage)
        if isinstance(stage[0], Activation):
            lines.append(some[0].forward(here, here))
            continue
        if len(stage) == 1:
            lines.append(some[0].forward(here, there))
        else:
            last = stage[-1]
            count, size = parts(stage)
            # States go on from the one before; a pooled channel lies by itself.
            y = f"{there} + o * {last.given // count}" if isinstance(last, Pooling) else there
            lines.append(f"for (int o = 0; o < {count}; o++) {{")
            for call in some[:-1]:
                lines.append(f"    {call.forward(here, 'channel', size)}")
            lines.append(f"    {some[-1].forward('channel', y, size)}")
            lines.append("}")
        here, there = there, here
    return lines


def function(about: str, head: str, lines: list[str]) -> str:
    """A C function of some lines."""
    return "\n".join([about, head, "{", *(f"    {line}" for line in lines), "}", ""])


def _both(layer: Layer) -> tuple[str | None, str | None]:
    return getattr(layer, "weight", None), getattr(layer, "bias", None)


def _at(name: str, offset: int) -> str:
    return f"{name} + {offset}" if offset else name


def _frame(name: str, layer: Layer) -> str:
    assert isinstance(layer, Convolution | Pooling)
    f: Frame = layer.frame
    fields = [
        ("channels", f.channels), ("rows", f.space[0]), ("columns", f.space[1]),
        ("out_channels", f.out_channels), ("out_rows", f.out_space[0]),
        ("out_columns", f.out_space[1]), ("kernel_rows", f.kernel[0]),
        ("kernel_columns", f.kernel[1]), ("row_stride", f.stride[0]),
        ("column_stride", f.stride[1]), ("row_padding", f.padding[0]),
        ("column_padding", f.padding[1]), ("row_dilation", f.dilation[0]),
        ("column_dilation", f.dilation[1]), ("groups", f.groups),
    ]  # fmt: skip
    texts = [f".{key} = {value}" for key, value in fields]
    rows = [", ".join(texts[start : start + 3]) for start in range(0, len(texts), 3)]
    inner = ",\n".join(f"    {row}" for row in rows)
    return f"static const struct frame {name} = {{ /* {comment(layer.name)} */\n{inner},\n}};\n"
