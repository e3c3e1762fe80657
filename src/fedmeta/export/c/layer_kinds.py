"""The kinds of layers that C code is written for, each with the shapes and names it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Pair = tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """How a window moves over an image, (rows, columns) each; padding is above and to the left."""

    channels: int
    space: Pair
    out_channels: int
    out_space: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int = 1

    @property
    def taps(self) -> int:
        """Products of one output of a convolution."""
        return self.channels // self.groups * math.prod(self.kernel)


@dataclass(frozen=True)
class Linear:
    """`rows` products with one matrix of (outputs, inputs)."""

    name: str
    rows: int
    inputs: int
    outputs: int
    weight: str
    bias: str | None

    @property
    def given(self) -> int:
        """Numbers that it gives."""
        return self.rows * self.outputs


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image, its channels in groups."""

    name: str
    frame: Frame
    weight: str
    bias: str | None

    @property
    def given(self) -> int:
        """Numbers that it gives."""
        return self.frame.out_channels * math.prod(self.frame.out_space)


@dataclass(frozen=True)
class Pooling:
    """The largest, or the mean, of every window of every channel.

    Args:
        name: of the layer.
        frame: of the window.
        kind: of pooling.
        border: whether padding counts in a mean.
        divisor: what sums are divided by instead of the number of pixels; 0: that number.
    """

    name: str
    frame: Frame
    kind: Literal["max", "average"]
    border: bool = False
    divisor: int = 0

    @property
    def given(self) -> int:
        """Numbers that it gives."""
        return self.frame.channels * math.prod(self.frame.out_space)


@dataclass(frozen=True)
class Activation:
    """A function of every number by itself, in place; its derivative is found from its value."""

    name: str
    kind: str
    given: int
    slope: float = 0.0


@dataclass(frozen=True)
class Normalisation:
    """Rows of numbers with mean 0 and variance 1, then scaled and shifted.

    Number i of the whole has the scale at (i / spread) mod scales.
    """

    name: str
    rows: int
    size: int
    spread: int
    scales: int
    epsilon: float
    weight: str | None
    bias: str | None

    @property
    def given(self) -> int:
        """Numbers that it gives."""
        return self.rows * self.size


@dataclass(frozen=True)
class Recurrent:
    """The states of gated recurrent units, step by step, from products with what they are given.

    Of every step these are three for each number of the state; the parameters are those of the
    products with the state before.
    """

    name: str
    steps: int
    width: int
    weight: str
    bias: str

    @property
    def given(self) -> int:
        """Numbers that it gives."""
        return self.steps * self.width


@dataclass(frozen=True)
class Mean:
    """The mean of some rows of numbers."""

    name: str
    rows: int
    given: int


Layer = Linear | Convolution | Pooling | Activation | Normalisation | Recurrent | Mean
