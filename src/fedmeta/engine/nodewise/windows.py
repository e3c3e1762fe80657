"""Which pixels a pooling looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
        room = size + 2 * padding - self.dilation[axis] * (self.size[axis] - 1) - 1
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
