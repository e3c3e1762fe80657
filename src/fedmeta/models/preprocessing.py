"""Images as a pretrained backbone wants them: colours, size, mean and deviation, as a first layer.

As a layer it travels with the model: training, devices and exported graphs do the same. Resizing is
linear in the pixels of each axis, so it is two products with constant matrices,

    out = R_h · image · R_wᵀ,   R[i, j] ∝ k((j − c_i) / max(s, 1)),   c_i = (i + ½) s − ½

with s = before / after and k a triangle or a cubic (a = −½), widened where an image gets smaller.
That is what image libraries do, up to their rounding to bytes. A centre crop is a choice of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedmeta.core.errors import ModelError

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Photo:
    """How a backbone was shown its photographs.

    Args:
        size: of the square it sees, in pixels.
        mean: per colour, of pixels from 0 to 1.
        deviation: likewise.
        crop: share of the resized image's shorter side that the square keeps, from the centre. An
            image that is smaller than the square is enlarged whole: it has no border to spare.
        interpolation: how images are resized.
    """

    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop: float = 1.0
    interpolation: Interpolation = "bicubic"


class Preprocessing(nn.Module):
    """Images (n, channels, height, width) from 0 to 1, grey or colour, as a backbone takes them.

    Args:
        photo: how.
        shape: of one image.

    Example:
        >>> grey = Preprocessing(Photo(4, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), (1, 2, 2))
        >>> grey(torch.ones(5, 1, 2, 2)).shape, float(grey(torch.ones(5, 1, 2, 2)).max())
        (torch.Size([5, 3, 4, 4]), 1.0)
    """

    rows: Tensor
    columns: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, photo: Photo, shape: Sequence[int]) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise ModelError(
                f"a pretrained backbone takes images (grey or RGB, height, width), but samples "
                f"have shape {tuple(shape)}",
                "give images, or a backbone of your own as file.py:function",
            )
        before = min(shape[1:])
        # How large the shorter side becomes.
        side = photo.size if before < photo.size else round(photo.size / photo.crop)
        for name, length in zip(("rows", "columns"), shape[1:], strict=True):
            resized = max(photo.size, round(length * side / before))
            matrix = resizing(length, resized, photo.interpolation)
            first = (resized - photo.size) // 2
            part = matrix[first : first + photo.size]
            self.register_buffer(name, torch.tensor(part, dtype=torch.float32))
        for name, values in (("mean", photo.mean), ("deviation", photo.deviation)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, size, size)."""
        square = self.rows @ images @ self.columns.T
        return (square - self.mean) / self.deviation  # grey becomes three colours here


def resizing(before: int, after: int, how: Interpolation) -> npt.NDArray[np.float64]:
    """The matrix (after, before) that resizes an axis; its rows sum to 1.

    Example:
        >>> resizing(4, 2, "bilinear").round(3).tolist()
        [[0.429, 0.429, 0.143, 0.0], [0.0, 0.143, 0.429, 0.429]]
    """
    scale = before / after
    centres = (np.arange(after) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(before) - centres[:, None]) / max(scale, 1.0)
    weights = np.maximum(1 - distance, 0.0) if how == "bilinear" else _cubic(distance)
    matrix: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return matrix


def _cubic(t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys, Cubic convolution interpolation for digital image processing, 1981."""
    near, far = 1.5 * t**3 - 2.5 * t**2 + 1, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
