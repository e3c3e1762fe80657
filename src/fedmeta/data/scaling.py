"""Centring and dividing inputs: mean and deviation from sums that nodes can add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Federation, Positions
from fedmeta.data.pool import Array
from fedmeta.data.settings import ScalingBasis, ScalingKind

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sums:
    """n, Σx and Σx² of some samples: all a node tells of its inputs for common scaling.

    Example:
        >>> whole = Sums(1, np.array([2.0]), np.array([4.0])) + Sums(1, np.zeros(1), np.zeros(1))
        >>> whole.count, whole.total.tolist(), whole.squares.tolist()
        (2, [2.0], [4.0])
    """

    count: int
    total: Floats
    squares: Floats

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )


@dataclass(frozen=True, eq=False)
class Scaling:
    """What is subtracted from inputs and what they are divided by; it travels with the model.

    Args:
        mean: broadcasts to the shape of one sample.
        deviation: likewise; nowhere 0.

    Example:
        >>> scaling = Scaling.from_sums(Sums(2, np.array([4.0, 6.0]), np.array([16.0, 18.0])))
        >>> scaling.apply(np.array([[0.0, 3.0], [4.0, 3.0]]), torch.float32).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def from_sums(cls, sums: Sums, floor: float = 0.0) -> Scaling:
        """Mean and (population) deviation; a feature that does not vary is divided by 1.

        Args:
            sums: of the samples.
            floor: smallest deviation to divide by, in units of the inputs.
        """
        mean = sums.total / sums.count
        variance = sums.squares / sums.count - mean**2
        # Below this the difference of the two is rounding error, not variance.
        varies = variance > 1e-12 * mean**2
        return cls(mean, np.maximum(np.sqrt(np.where(varies, variance, 1.0)), floor))

    def apply(self, inputs: Array, dtype: torch.dtype) -> torch.Tensor:
        """Scaled inputs, (…, *shape), as a tensor of that type."""
        # Short types cannot hold pixels before they are scaled.
        work = torch.float64 if dtype == torch.float64 else torch.float32
        mean, deviation = (torch.tensor(each, dtype=work) for each in (self.mean, self.deviation))
        return torch.tensor(inputs, dtype=work).sub_(mean).div_(deviation).to(dtype)

    def tensors(self) -> dict[str, torch.Tensor]:
        """For a model file: float64 tensors `mean` and `deviation`."""
        return {"mean": torch.tensor(self.mean), "deviation": torch.tensor(self.deviation)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Scaling:
        """The inverse of `tensors`."""
        mean, deviation = (tensors[name].double().cpu().numpy() for name in ("mean", "deviation"))
        return cls(mean, deviation)


def sums_of(inputs: Array, positions: Positions, kind: ScalingKind) -> Sums:
    """The sums over the samples at `positions`, in float64.

    Args:
        inputs: (N, *shape).
        positions: which of them.
        kind: "per-feature", or "per-channel" (the first axis of a sample is the channel).
    """
    per_channel = kind == "per-channel"
    axes = (0, *range(2, inputs.ndim)) if per_channel else (0,)
    # Axes of length 1 stay after the channel, so that the result broadcasts to a sample.
    shape = (inputs.shape[1], *[1] * (inputs.ndim - 2)) if per_channel else inputs.shape[1:]
    count, total, squares = 0, np.zeros(shape), np.zeros(shape)
    for start in range(0, len(positions), 4096):  # in blocks: the pool may be larger than memory
        block = inputs[positions[start : start + 4096]].astype(np.float64)
        count += block.size // total.size
        total += block.sum(axis=axes).reshape(shape)
        squares += (block**2).sum(axis=axes).reshape(shape)
    return Sums(count, total, squares)


def fit_scaling(
    federation: Federation,
    kind: ScalingKind = "per-feature",
    over: ScalingBasis = "sources",
    floor: float = 0.05,
) -> Scaling:
    """The scaling of a federation.

    Args:
        federation: the data.
        kind: "per-feature", "per-channel", or "none": bytes / 255, floats as they are.
        over: the samples of the "sources", or the whole "pool", which looks at target and unused
            samples too (the authors' code).
        floor: smallest deviation that bytes are divided by, as a share of 255; 0: none. Floats
            have none.

    Example:
        >>> from fedmeta.data.federation import Node, Task
        >>> node = Node("a", "source", np.array([0]), np.array([1]))
        >>> pool = np.array([[1.0], [3.0]]), np.zeros((2, 1))
        >>> data = Federation(*pool, Task("regression", 1), [node])
        >>> scaling = fit_scaling(data)
        >>> scaling.mean.tolist(), scaling.deviation.tolist()
        ([2.0], [1.0])
    """
    inputs, positions = federation.inputs, np.arange(len(federation.inputs))
    if kind != "none" and over == "sources":
        if not federation.sources:
            raise DataError(
                f"{federation.name} has no source nodes to take mean and deviation from",
                "use at least one source, or scaling 'none'",
            )
        held = [each for node in federation.sources for each in (node.support, node.query)]
        positions = np.concatenate(held)
    sums = None if kind == "none" else sums_of(inputs, positions, kind)
    return scaling_from(sums, inputs.dtype == np.uint8, floor)


def scaling_from(sums: Sums | None, pixels: bool, floor: float) -> Scaling:
    """The scaling that sums over samples give.

    Args:
        sums: over all of them; None: bytes / 255, floats as they are.
        pixels: whether inputs are bytes.
        floor: see `fit_scaling`.
    """
    if sums is None:
        return Scaling(np.zeros(()), np.array(255.0 if pixels else 1.0))
    # Pixels share one unit. Without a floor a border pixel that is lit once in a thousand images
    # reaches thousands of deviations on the one target where it is.
    return Scaling.from_sums(sums, 255 * floor if pixels else 0.0)
