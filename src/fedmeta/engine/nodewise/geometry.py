"""What a convolution is, apart from its numbers: shapes, stride, padding, dilation, groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    def plain(self) -> bool:
        """Whether it is neither transposed nor grouped."""
        return self.groups == 1 and not self.transposed

    @property
    def outputs(self) -> tuple[int, ...]:
        """Channels and space of the output of a convolution that is not transposed."""
        space = (
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, padding, dilation in zip(
                self.inputs[1:],
                self.kernel[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )
        return (self.kernel[0], *space)
