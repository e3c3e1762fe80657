"""What a convolution or a pooling is, apart from its numbers: shapes, stride, padding, …"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Slot = Literal["x", "w", "g"]
"""A place in the trilinear form ⟨g, x ∗ w⟩: input, weight, or the factor on the output."""


@dataclass(frozen=True)
class Geometry:
    """Shapes of one node and how the kernel moves; one number per spatial axis.

    Args:
        inputs: channels and space of the input, (C, *space).
        kernel: shape of the weight, (K, C / groups, *kernel); (C, K / groups, …) if transposed.
        stride: pixels from one output to the next.
        padding: zeros added on either side.
        dilation: pixels from one tap to the next.
        transposed: the adjoint of a convolution, as in `torch.conv_transpose2d`.
        output_padding: rows added to one side of a transposed output.
        groups: independent parts of the channels.
    """

    inputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls,
        x: Tensor,
        w: Tensor,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        transposed: bool = False,
        output_padding: int | tuple[int, ...] = 0,
    ) -> Geometry:
        """The geometry of x (batch, channels, *space) and w, with torch's arguments."""
        axes = w.ndim - 2

        def each(value: int | tuple[int, ...]) -> tuple[int, ...]:
            numbers = (value,) if isinstance(value, int) else tuple(value)
            return numbers * axes if len(numbers) == 1 else numbers

        return cls(
            tuple(x.shape[1:]),
            tuple(w.shape),
            each(stride),
            each(padding),
            each(dilation),
            transposed,
            each(output_padding),
            groups,
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is neither transposed nor grouped."""
        return self.groups == 1 and not self.transposed

    @property
    def outputs(self) -> tuple[int, ...]:
        """Channels and space of the output of a convolution that is not transposed."""
        sizes, taps = self.inputs[1:], self.kernel[2:]
        rooms = map(_room, sizes, taps, self.padding, self.dilation)
        counts = (room // stride + 1 for room, stride in zip(rooms, self.stride, strict=True))
        return (self.kernel[0], *counts)


def _room(size: int, taps: int, padding: int, dilation: int) -> int:
    """How far a window can move along an axis."""
    return size + 2 * padding - dilation * (taps - 1) - 1


@dataclass(frozen=True)
class Window:
    """A pooling's window, (rows, columns) each: the arguments of `torch.max_pool2d`.

    Args:
        size: of the window.
        stride: from one window to the next.
        padding: border around the image.
        dilation: from one tap to the next; averages have none.
        ceil_mode: keep a last window that reaches over the border.
        count_padding: whether the border counts in an average.
        divisor: what a sum is divided by instead of the number of its pixels.

    Example:
        >>> Window((3, 3), (2, 2), (0, 0), (1, 1), ceil_mode=True).outputs((8, 9))
        (4, 4)
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool
    count_padding: bool = True
    divisor: int | None = None

    def outputs(self, space: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of the pooled image."""
        rows, columns = (self._along(axis, size) for axis, size in enumerate(space))
        return rows, columns

    def _along(self, axis: int, size: int) -> int:
        stride, padding = self.stride[axis], self.padding[axis]
        room = _room(size, self.size[axis], padding, self.dilation[axis])
        count = (room + (stride - 1 if self.ceil_mode else 0)) // stride + 1
        if self.ceil_mode and (count - 1) * stride >= size + padding:
            count -= 1  # a window must start inside the image or its left border
        return count

    @property
    def fits_triton(self) -> bool:
        """Whether our own kernels take it: taps side by side that a byte can count."""
        near = self.dilation == (1, 1) and self.size[0] * self.size[1] <= 127
        return near and (self.divisor is None or self.divisor > 0)

    @property
    def average_arguments(self) -> dict[str, Any]:
        """How averages divide, as arguments of a kernel."""
        return {"COUNT_PADDING": self.count_padding, "DIVISOR": self.divisor or 0}
