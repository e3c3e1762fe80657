"""The body of a network in whole numbers of 8 bits.

    x ≈ s (q − z),  q in −128 … 127    numbers between layers: a scale and a zero for each result
    w ≈ s_o q,      q in −127 … 127    weights: one scale for each output

A product sums in 32 bits and is rescaled once, s_x s_o / s_y Σ q_w (q_x − z) + b / s_y + z_y.
Maxima and means stay in the unit they are given. An activation is a table of its 256 values. Where
one follows, the range of what it is given is cut to what it tells apart. The head stays float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import ModelError
from fedmeta.core.tree import Tree
from fedmeta.export.c.layer_kinds import (
    Activation,
    Convolution,
    Layer,
    Linear,
    Mean,
    Normalisation,
    Pooling,
    Recurrent,
)
from fedmeta.export.c.network import body_lines
from fedmeta.export.c.plan import Plan
from fedmeta.export.c.ranges import Ranges
from fedmeta.export.c.writing import comment, number, piece

Floats = npt.NDArray[np.float64]
_MOST_TAPS = (2**31 - 1) // (255 * 127)  # whose sum fits 32 bits
_TELLS_APART = {  # below and above that an activation gives about the same
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "elu": (-4.0, math.inf),
    "tanh": (-3.0, 3.0),
    "sigmoid": (-6.0, 6.0),
}


@dataclass(frozen=True)
class Scale:
    """x = step (q − zero)."""

    step: float
    zero: int

    @classmethod
    def of(cls, low: float, high: float) -> Scale:
        """The scale of a range, which is stretched to hold 0."""
        low, high = min(low, 0.0), max(high, 0.0)
        step = (high - low) / 255 or 1.0
        return cls(step, round(-128 - low / step))

    def whole(self, values: Floats) -> npt.NDArray[np.int8]:
        """Numbers as q."""
        return np.clip(np.floor(values / self.step + self.zero + 0.5), -128, 127).astype(np.int8)

    def real(self, whole: npt.NDArray[np.int8]) -> Floats:
        """q as numbers."""
        return self.step * (whole.astype(np.float64) - self.zero)


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of the body.

    Args:
        layer: which.
        place: its number, from 1.
        zero: of what it is given.
        arrays: its constants: kind, name, values, what they are.
    """

    layer: Layer
    place: int
    zero: int
    arrays: tuple[tuple[str, str, npt.NDArray[Any], str], ...]

    def forward(self, x: str, y: str, channel: int | None = None) -> str:
        """The call that makes y of x; channel: numbers of a channel, where o alone is computed."""
        frame, place = f"&frame_{self.place}", self.place
        own = f"weight_{place}, scale_{place}, offset_{place}, {self.zero}, {x}, {y}"
        match self.layer:
            case Convolution():
                some = f"0, {self.layer.frame.out_channels}" if channel is None else "o, o + 1"
                return f"convolve_bytes({frame}, {some}, {own});"
            case Linear(rows=rows, inputs=inputs, outputs=outputs):
                return f"linear_bytes({rows}, {inputs}, {outputs}, {own});"
            case Pooling(kind=kind, border=border, divisor=divisor):
                count = self.layer.frame.channels if channel is None else 1
                how = "" if kind == "max" else f"{border:d}, {divisor}, {self.zero}, "
                return f"pool_{kind}_bytes({frame}, {count}, {how}{x}, {y});"
            case _:
                return f"look_up({channel or self.layer.given}, table_{place}, {y});"


@dataclass(frozen=True)
class Body:
    """The body in whole numbers.

    Args:
        entry: the scale of its inputs.
        steps: its layers.
        exit: the scale of its features.
    """

    entry: Scale
    steps: tuple[Step, ...]
    exit: Scale

    @property
    def arrays(self) -> list[tuple[str, str, npt.NDArray[Any], str]]:
        """Kind, name, values and meaning of all constants."""
        return [each for step in self.steps for each in step.arrays]

    def pieces(self) -> dict[str, str]:
        """The code of its layers, each once."""
        found = {"rounded": piece("rounded")}
        for step in self.steps:
            match step.layer:
                case Convolution():
                    names = ["inside", "convolve_bytes"]
                case Linear():
                    names = ["linear_bytes"]
                case Pooling(kind="max"):
                    names = ["pool_max_place", "pool_max"]
                case Pooling():
                    names = ["pool_average_part", "pool_average_bytes"]
                case _:
                    names = ["look_up"]
            for name in names:
                text = piece(name, NUMBER="int8_t")
                if name.startswith("pool_max"):  # beside which there may be one of floats
                    text = text.replace("place_of_maximum", "place_of_largest_byte")
                    text, name = text.replace("pool_max", "pool_max_bytes"), f"{name}_bytes"
                found[name] = text
        return found

    def lines(self, scaled: str, plan: Plan) -> list[str]:
        """What `body` does, from the C expression of a scaled input on."""
        entry = f"rounded({scaled} / {number(self.entry.step)} + {number(self.entry.zero)})"
        moves = sum(not isinstance(stage[0], Activation) for stage in plan.stages)
        value = f"{number(self.exit.step)} * (float)({'ab'[moves % 2]}[i] - {self.exit.zero})"
        return [
            "for (int i = 0; i < FM_INPUTS; i++) {",
            f"    a[i] = {entry};",
            "}",
            *body_lines(plan, self.steps),
            f"for (int i = 0; i < {plan.features}; i++) {{",
            f"    features[i] = {value.replace('- -', '+ ')};",
            "}",
        ]


def quantised(plan: Plan, values: Tree, ranges: Ranges) -> Body:
    """The body of a plan in whole numbers.

    Args:
        plan: of the network.
        values: its parameters by name.
        ranges: of its numbers on the source nodes.

    Raises:
        ModelError: names a layer that has no such form.
    """
    if not plan.body:
        raise ModelError(
            "int8 is for the layers that do not adapt, and all layers of this network do",
            "export it in float32, or train with --inner-scope head and a network of more layers",
        )
    scales = [Scale.of(*_cut(plan.body, -1, ranges.low[0], ranges.high[0]))]
    steps = []
    for place, layer in enumerate(plan.body):
        before = scales[-1]
        after = Scale.of(*_cut(plan.body, place, ranges.low[place + 1], ranges.high[place + 1]))
        arrays: tuple[Any, ...] = ()
        match layer:
            case Pooling():
                after = before
            case Activation():
                arrays = (_table(layer, place + 1, before, after),)
            case Convolution() | Linear():
                arrays = _product(layer, place + 1, values, before, after)
            case Normalisation() | Recurrent() | Mean():
                does = (
                    "normalises"
                    if isinstance(layer, Normalisation)
                    else "is of a recurrent network"
                )
                raise ModelError(
                    f"layer {layer.name!r} {does}, which has no form of whole numbers here",
                    "export it in float32",
                )
        steps.append(Step(layer, place + 1, before.zero, arrays))
        scales.append(after)
    return Body(scales[0], tuple(steps), scales[-1])


def _cut(body: tuple[Layer, ...], place: int, low: float, high: float) -> tuple[float, float]:
    """The range of a layer's results, cut to what the activation that follows tells apart."""
    for layer in body[place + 1 :]:
        if isinstance(layer, Activation) and layer.kind in _TELLS_APART:
            least, most = _TELLS_APART[layer.kind]
            return max(low, least), min(high, most)
        if not (isinstance(layer, Pooling) and layer.kind == "max"):
            break
    return low, high


def _table(layer: Activation, place: int, before: Scale, after: Scale) -> Any:
    x = before.real(np.arange(-128, 128).astype(np.int8))
    curves = {
        "relu": np.maximum(x, 0),
        "relu6": np.clip(x, 0, 6),
        "leaky_relu": np.where(x > 0, x, layer.slope * x),
        "elu": np.where(x > 0, x, layer.slope * np.expm1(np.minimum(x, 0))),
        "tanh": np.tanh(x),
        "sigmoid": 1 / (1 + np.exp(-x)),
    }
    whole = after.whole(curves[layer.kind])
    return "int8_t", f"table_{place}", whole, f"{comment(layer.name)}: {layer.kind}"


def _product(
    layer: Convolution | Linear, place: int, values: Tree, before: Scale, after: Scale
) -> tuple[Any, ...]:
    weight = values[layer.weight].double().numpy()
    rows = weight.reshape(len(weight), -1)
    if rows.shape[1] > _MOST_TAPS:
        raise ModelError(
            f"layer {layer.name!r} sums {rows.shape[1]} products, too many for 32 bits",
            "export it in float32",
        )
    own = np.abs(rows).max(axis=1) / 127
    own = np.where(own > 0, own, 1.0)
    whole = np.rint(rows / own[:, None]).astype(np.int8)
    bias = 0.0 if layer.bias is None else values[layer.bias].double().numpy()
    scale = (before.step * own / after.step).astype("<f4")
    offset = (np.zeros(len(rows)) + bias / after.step + after.zero).astype("<f4")
    shape = " x ".join(map(str, weight.shape))
    return (
        ("int8_t", f"weight_{place}", whole, f"{comment(layer.weight)}: {shape}"),
        ("float", f"scale_{place}", scale, "of its outputs"),
        ("float", f"offset_{place}", offset, "of its outputs"),
    )
