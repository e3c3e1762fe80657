"""Centring and dividing inputs and labels: mean and deviation from sums that nodes can add up.

    x → (x − m)/s,   m = Σx/n,   s² = Σx²/n − m²

Class labels stay as they are. With values the same is done, output by output, so that a step size
means the same whatever unit they are in: errors are computed on (y − m)/s, and answers are given
back as m + s·output. Tokens, whole numbers that a model looks up, are never scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedmeta.core.errors import DataError
from fedmeta.data.federation import Federation, Positions
from fedmeta.data.named_inputs import InputParts
from fedmeta.data.pool import Array
from fedmeta.data.settings import LabelScaling, ScalingBasis, ScalingKind

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sums:
    """n, Σx and Σx² of some samples: all a node tells of its inputs or labels for common scaling.

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
        labels: the same for the values of a regression task, one number per output; None: labels
            are taken as they are.
        tokens: inputs are whole numbers that a model looks up: they stay as they are, as int64.

    Example:
        >>> scaling = Scaling.from_sums(Sums(2, np.array([4.0, 6.0]), np.array([16.0, 18.0])))
        >>> scaling.apply(np.array([[0.0, 3.0], [4.0, 3.0]]), torch.float32).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
        >>> both = replace(scaling, labels=Scaling(np.array([5.0]), np.array([2.0])))
        >>> both.scaled_labels(np.array([[9.0]]), torch.float32).tolist()
        [[2.0]]
        >>> both.in_label_unit(torch.tensor([[2.0]])).tolist()
        [[9.0]]
    """

    mean: Floats
    deviation: Floats
    labels: Scaling | None = None
    tokens: bool = False

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

    @classmethod
    def of_tokens(cls, labels: Sums | None) -> Scaling:
        """Inputs stay as they are; labels that are values are scaled by their sums."""
        standard = None if labels is None else cls.from_sums(labels)
        return cls(np.zeros(()), np.ones(()), standard, tokens=True)

    def apply(self, inputs: Array, dtype: torch.dtype) -> torch.Tensor:
        """Scaled inputs, (…, *shape), as a tensor of that type; tokens as int64."""
        if self.tokens:
            return torch.tensor(inputs.astype(np.int64))
        # Short types cannot hold pixels before they are scaled.
        work = torch.float64 if dtype == torch.float64 else torch.float32
        mean, deviation = (torch.tensor(each, dtype=work) for each in (self.mean, self.deviation))
        return torch.tensor(inputs, dtype=work).sub_(mean).div_(deviation).to(dtype)

    def scaled_labels(self, labels: Array, dtype: torch.dtype) -> torch.Tensor:
        """Values, (…, outputs), as errors are computed on."""
        if self.labels is None:
            return torch.tensor(labels, dtype=dtype)
        # In double precision: a mean may be many deviations away from 0.
        values = (labels.astype(np.float64) - self.labels.mean) / self.labels.deviation
        return torch.tensor(values, dtype=dtype)

    def in_label_unit(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs of a network, (…, outputs), in the unit that labels are given in."""
        if self.labels is None:
            return outputs
        mean, deviation = (
            torch.tensor(each, device=outputs.device)
            for each in (self.labels.mean, self.labels.deviation)
        )
        return (mean + deviation * outputs.double()).to(outputs.dtype)

    def label_deviation(self, outputs: int) -> Floats:
        """What labels are divided by, (outputs,): what an error of 1 is in their own unit."""
        return np.ones(outputs) if self.labels is None else self.labels.deviation

    def tensors(self) -> dict[str, torch.Tensor]:
        """For a model file: float64 tensors `mean` and `deviation`, and those of labels if any."""
        named = {"mean": self.mean, "deviation": self.deviation}
        if self.labels is not None:
            named |= {"label_mean": self.labels.mean, "label_deviation": self.labels.deviation}
        if self.tokens:
            named["tokens"] = np.ones(())
        return {name: torch.tensor(each) for name, each in named.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Scaling:
        """The inverse of `tensors`; an older file has none of labels, which were not scaled."""

        def read(prefix: str) -> tuple[Floats, Floats]:
            mean, deviation = (tensors[f"{prefix}{name}"] for name in ("mean", "deviation"))
            return mean.double().cpu().numpy(), deviation.double().cpu().numpy()

        labels = cls(*read("label_")) if "label_mean" in tensors else None
        return cls(*read(""), labels, "tokens" in tensors)


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
    kind: ScalingKind | None = None,
    over: ScalingBasis = "sources",
    floor: float = 0.05,
    labels: LabelScaling = "standard",
) -> Scaling:
    """The scaling of a federation.

    Args:
        federation: the data.
        kind: "per-feature", "per-channel", or "none": bytes / 255, floats as they are. None: per
            channel where class numbers are local to a node, as in episodes, else per feature.
        over: the samples of the "sources", or the whole "pool", which looks at target and unused
            samples too (the authors' code).
        floor: smallest deviation that bytes are divided by, as a share of 255; 0: none. Floats
            have none.
        labels: "standard" divides the values of a regression task by their deviation over the
            samples of the sources, after their mean is subtracted; "none" leaves them alone.

    Example:
        >>> from fedmeta.data.federation import Node, Task
        >>> node = Node("a", "source", np.array([0]), np.array([1]))
        >>> pool = np.array([[1.0], [3.0]]), np.array([[10.0], [50.0]])
        >>> data = Federation(*pool, Task("regression", 1), [node])
        >>> scaling = fit_scaling(data)
        >>> scaling.mean.tolist(), scaling.deviation.tolist()
        ([2.0], [1.0])
        >>> scaling.labels.mean.tolist(), scaling.labels.deviation.tolist()
        ([30.0], [20.0])
    """
    inputs, sums = federation.inputs, None
    if kind is None:
        kind = "per-channel" if federation.task.local_labels else "per-feature"
    if kind != "none":
        positions = np.arange(len(inputs)) if over == "pool" else _held(federation)
        single = federation.parts is None
        sums = sums_of(inputs, positions, kind if single else "per-feature")
    values = label_sums(federation, labels)
    if federation.parts is not None:
        return of_parts(federation.parts, sums, kind, floor, values)
    return scaling_from(sums, inputs.dtype == np.uint8, floor, values)


def of_parts(
    parts: InputParts, sums: Sums | None, kind: ScalingKind, floor: float, labels: Sums | None
) -> Scaling:
    """The scaling of rows with several inputs, each by its kind; see `scaling_from`.

    Args:
        parts: what a row consists of.
        sums: over the numbers of a row one by one; None: pixels / 255, the rest as it is.
        kind, floor, labels: see `fit_scaling`.

    Example:
        >>> from fedmeta.data.named_inputs import InputParts
        >>> parts, rows = InputParts.of({"age": [[30.0], [50.0]], "words": [[5, 2], [7]]})
        >>> sums = sums_of(rows, np.array([0, 1]), "per-feature")
        >>> scaling = of_parts(parts, sums, "per-feature", 0.05, None)
        >>> scaling.apply(rows, torch.float32).tolist()
        [[-1.0, 5.0, 2.0, 2.0], [1.0, 7.0, 0.0, 1.0]]
    """
    pixels = parts.of_kind("pixels")
    values = None if labels is None else Scaling.from_sums(labels)
    if sums is None:
        return Scaling(np.zeros(parts.width), np.where(pixels, 255.0, 1.0), values)
    channels = kind == "per-channel"
    count, total, squares = parts.moments(sums.count, sums.total, sums.squares, channels)
    mean = total / count
    variance = squares / count - mean**2
    varies = variance > 1e-12 * mean**2
    least = np.where(pixels, 255 * floor, 0.0)
    return Scaling(mean, np.maximum(np.sqrt(np.where(varies, variance, 1.0)), least), values)


def token_scaling(federation: Federation, labels: LabelScaling = "standard") -> Scaling | None:
    """Inputs as tokens; None where they are not whole numbers from 0 on.

    Args:
        federation: the data.
        labels: see `fit_scaling`.

    Example:
        >>> from fedmeta.data.federation import Node, Task
        >>> node = Node("a", "source", np.array([0]), np.array([1]))
        >>> words = np.array([[3.0, 0.0], [7.0, 1.0]]), np.array([0, 1])
        >>> data = Federation(*words, Task("classification", 2), [node])
        >>> token_scaling(data).apply(data.inputs, torch.float32)
        tensor([[3, 0],
                [7, 1]])
    """
    values = federation.inputs
    if values.dtype.kind == "f" and not ((values >= 0) & (values == np.round(values))).all():
        return None
    return Scaling.of_tokens(label_sums(federation, labels))


def check_tokens(inputs: Array, known: Sequence[int]) -> None:
    """Refuse tokens that no embedding has a row for, and numbers that are no tokens.

    Args:
        inputs: the samples.
        known: how many tokens each embedding of the network knows, the smallest first.
    """
    low, high = (inputs.min(), inputs.max()) if inputs.size else (0, 0)
    if known and high >= known[-1]:
        raise DataError(
            f"the samples have token {high:g}, but the model knows {known[-1]}, numbered from 0",
            "make its embedding larger, or number the tokens as in training",
        )
    if low < 0 or (inputs.dtype.kind == "f" and (inputs != np.round(inputs)).any()):
        raise DataError(
            "the samples are tokens to the model, but not all of them are whole numbers from 0 on",
            "give tokens as in training",
        )


def label_sums(federation: Federation, labels: LabelScaling) -> Sums | None:
    """n, Σy and Σy² of the source nodes' labels; None where labels are taken as they are."""
    if labels == "none" or federation.task.kind == "classification":
        return None
    return sums_of(federation.labels, _held(federation), "per-feature")


def _held(federation: Federation) -> Positions:
    """Where all samples of the source nodes are."""
    if not federation.sources:
        raise DataError(
            f"{federation.name} has no source nodes to take mean and deviation from",
            "use at least one source, or scaling 'none' for inputs and labels",
        )
    return np.concatenate(
        [each for node in federation.sources for each in (node.support, node.query)]
    )


def scaling_from(
    sums: Sums | None, pixels: bool, floor: float, labels: Sums | None = None
) -> Scaling:
    """The scaling that sums over samples give.

    Args:
        sums: over all of them; None: bytes / 255, floats as they are.
        pixels: whether inputs are bytes.
        floor: see `fit_scaling`.
        labels: over the values of a regression task; None: they are taken as they are.
    """
    values = None if labels is None else Scaling.from_sums(labels)
    if sums is None:
        return Scaling(np.zeros(()), np.array(255.0 if pixels else 1.0), values)
    # Pixels share one unit. Without a floor a border pixel that is lit once in a thousand images
    # reaches thousands of deviations on the one target where it is.
    return replace(Scaling.from_sums(sums, 255 * floor if pixels else 0.0), labels=values)
