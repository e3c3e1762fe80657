"""Several named inputs per sample, and sequences of different lengths.

Everywhere between reading and the model a sample is one row of numbers: its inputs side by side,
and behind a sequence how many steps it has. What each part is travels with the model, whose call
takes the row apart again (`models.calling`). Whole numbers up to 2²⁴ are exact in a row.

    numbers  of floating point: centred and divided by, input by input or channel by channel
    pixels   bytes with two axes or more, channels first: scaled likewise
    tokens   whole numbers: never scaled, int64 for the model
    flags    true or false, or a mask of 0 and 1: never scaled, bool for the model

A sequence, given as a list of arrays of different lengths, is padded with 0 at its end; the padding
counts for no mean and stays 0. The model may ask for `mask` or `lengths` (`NAME_mask` and
`NAME_lengths` where several inputs are sequences).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import check_input
from fedmeta.data.given_inputs import differ, named
from fedmeta.data.pool import Array, as_array, normalised_inputs

PartKind = Literal["numbers", "pixels", "tokens", "flags"]
_EXACT = 2**24  # whole numbers below this are exact in float32


@dataclass(frozen=True)
class InputPart:
    """One input.

    Args:
        name: of it.
        shape: of a sample; of a sequence its first axis is the longest.
        kind: see the module.
        sequence: whether samples have different lengths.
    """

    name: str
    shape: tuple[int, ...]
    kind: PartKind = "numbers"
    sequence: bool = False

    @property
    def size(self) -> int:
        """Numbers in a row, without the length."""
        return math.prod(self.shape)

    def filled(self, values: Any, lengths: Any = None) -> Array:
        """Rows (n, size), or (n, size + 1) with the lengths of sequences, from what people have."""
        if not self.sequence:
            rows = _checked(_normal(values, self.name, self.kind), self)
            return rows.reshape(len(rows), -1)
        longest, inner = self.shape[0], self.shape[1:]
        each = _sequences(values, lengths, self.name)
        given = sum(steps.nbytes for steps in each)
        check_input(f"input {self.name!r}", 4 * len(each) * self.size, given)
        rows = np.zeros((len(each), longest, *inner), np.float32)
        for row, steps in enumerate(each):
            found = _normal(steps, self.name, self.kind) if len(steps) else steps
            if len(steps) == 0 or len(steps) > longest or found.shape[1:] != inner:
                wanted = f"1 to {longest} steps" + (f" of shape {inner}" if inner else "")
                raise DataError(
                    f"sample {row + 1} of input {self.name!r} has shape {np.shape(steps)}, the "
                    f"model takes {wanted}",
                    "cut longer sequences, or train with some as long",
                )
            rows[row, : len(steps)] = found
        _check_values(rows, self)
        counts = np.array([[len(steps)] for steps in each], np.float32)
        return np.concatenate([rows.reshape(len(rows), -1), counts], axis=1)


@dataclass(frozen=True)
class InputParts:
    """The inputs of a sample in the order in which they stand in a row.

    Example:
        >>> parts, rows = InputParts.of({"age": [[31.0], [64.0]], "words": [[5, 2], [7]]})
        >>> rows.tolist()
        [[31.0, 5.0, 2.0, 2.0], [64.0, 7.0, 0.0, 1.0]]
        >>> split = parts.split(torch.from_numpy(rows))
        >>> split["words"].tolist(), split["mask"].tolist(), split["lengths"].tolist()
        ([[5, 2], [7, 0]], [[True, True], [True, False]], [2, 1])
        >>> InputParts.from_facts(parts.facts()) == parts
        True
    """

    parts: tuple[InputPart, ...]

    @classmethod
    def of(cls, given: Any) -> tuple[InputParts, Array]:
        """What some samples are, and their rows; see `named` for what may be given."""
        inputs = named(given)
        parts = cls(tuple(_part(name, values) for name, values in inputs.items()))
        return parts, parts.rows(inputs)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(part.name for part in self.parts)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return sum(part.size + part.sequence for part in self.parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every input of a sample."""
        return {part.name: part.shape for part in self.parts}

    @property
    def asked(self) -> tuple[str, ...]:
        """What a model may ask for besides the inputs."""
        sequences = [part.name for part in self.parts if part.sequence]
        own = [f"{name}_{what}" for name in sequences for what in ("mask", "lengths")]
        return (*(("mask", "lengths") if len(sequences) == 1 else ()), *own)

    def rows(self, given: Any) -> Array:
        """Samples as rows (n, width), from inputs by name, or from rows."""
        if isinstance(given, np.ndarray | Tensor) and tuple(given.shape[1:]) == (self.width,):
            return as_array(given)
        inputs = named(given)
        lengths = {f"{p.name}_lengths": p.name for p in self.parts if p.sequence}
        if len(lengths) == 1:
            lengths["lengths"] = next(iter(lengths.values()))
        lengths = {key: name for key, name in lengths.items() if key not in self.names}
        absent = [name for name in self.names if name not in inputs]
        extra = [name for name in inputs if name not in {*self.names, *lengths}]
        if absent or extra:
            what = f"lack {absent[0]!r}" if absent else f"have {extra[0]!r}"
            raise DataError(
                f"the samples {what}, unlike those the model was trained on",
                f"give the inputs {', '.join(map(repr, self.names))}",
            )
        told = {name: inputs[key] for key, name in lengths.items() if key in inputs}
        blocks = [part.filled(inputs[part.name], told.get(part.name)) for part in self.parts]
        counts = {part.name: len(rows) for part, rows in zip(self.parts, blocks, strict=True)}
        if len({*counts.values()}) > 1:
            listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise DataError(f"inputs have different numbers of samples ({listed})", "give as many")
        return np.concatenate(blocks, axis=1).astype(np.float32, copy=False)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Inputs by name, as the model wants them, and masks and lengths of sequences."""
        found, start = dict[str, Tensor](), 0
        single = sum(part.sequence for part in self.parts) == 1
        for part in self.parts:
            flat = rows[..., start : start + part.size]
            values = flat.reshape(*rows.shape[:-1], *part.shape)
            start += part.size
            if part.kind == "tokens":
                values = values.long()
            elif part.kind == "flags":
                values = values > 0
            if part.sequence:
                # A blank sample, as the head is traced on, has one step.
                lengths = rows[..., start].long().clamp(min=1)
                start += 1
                steps = torch.arange(part.shape[0], device=rows.device)
                mask = steps < lengths[..., None]
                spread = mask.reshape(*mask.shape, *[1] * (len(part.shape) - 1))
                values = torch.where(spread, values, torch.zeros_like(values))
                for name in (f"{part.name}_", *([""] if single else [])):
                    found |= {f"{name}mask": mask, f"{name}lengths": lengths}
            found[part.name] = values
        return found

    def moments(
        self, count: int, total: Array, squares: Array, channels: bool
    ) -> tuple[Array, Array, Array]:
        """n, Σx and Σx² for every number of a row, from those of the numbers one by one.

        Steps of a sequence share theirs, over real steps alone; so do the pixels of a channel
        where `channels` says so. What is never scaled has mean 0 and deviation 1.
        """
        n, s, q = np.ones(self.width), np.zeros(self.width), np.ones(self.width)
        start = 0
        for part in self.parts:
            here = slice(start, start + part.size)
            start += part.size + part.sequence
            if part.kind in ("tokens", "flags"):
                continue
            pooled = [0] if part.sequence else []
            if channels and not part.sequence and len(part.shape) > 1:
                pooled = list(range(1, len(part.shape)))
            shared = math.prod(part.shape[axis] for axis in pooled)
            samples = total[start - 1] if part.sequence else count * shared
            for target, source in ((s, total), (q, squares)):
                block = source[here].reshape(part.shape)
                wide = np.broadcast_to(block.sum(tuple(pooled), keepdims=True), part.shape)
                target[here] = (wide if pooled else block).reshape(-1)
            n[here] = samples
        return n, s, q

    def of_kind(self, kind: PartKind) -> Array:
        """(width,) which numbers of a row are of a kind."""
        found = [np.full(p.size + p.sequence, p.kind == kind) for p in self.parts]
        for part, block in zip(self.parts, found, strict=True):
            block[part.size :] = False
        return np.concatenate(found)

    def invented(self, count: int, vocabulary: int, rng: np.random.Generator) -> Array:
        """Rows like scaled ones: standard normal numbers, any tokens, flags that are set."""
        blocks = []
        for part in self.parts:
            size = count, part.size
            values: Array = rng.normal(size=size)
            if part.kind == "tokens":
                values = rng.integers(max(vocabulary, 1), size=size)
            elif part.kind == "flags":
                values = np.ones(size)
            blocks.append(values)
            if part.sequence:
                blocks.append(rng.integers(1, part.shape[0] + 1, size=(count, 1)))
        return np.concatenate(blocks, axis=1).astype(np.float32)

    def facts(self) -> list[dict[str, Any]]:
        """As plain values, for the header of a model file."""
        return [asdict(part) for part in self.parts]

    @classmethod
    def from_facts(cls, facts: Sequence[Mapping[str, Any]]) -> InputParts:
        """The inverse of `facts`."""
        parts = []
        for each in facts:
            shape = tuple(int(side) for side in each["shape"])
            if each["kind"] not in get_args(PartKind) or any(side < 1 for side in shape):
                raise ValueError(f"its input {each['name']!r} makes no sense")
            parts.append(InputPart(str(each["name"]), shape, each["kind"], bool(each["sequence"])))
        return cls(tuple(parts))


def _part(name: str, values: Any) -> InputPart:
    """What an input is, from all of its samples."""
    sequence = not isinstance(values, np.ndarray | Tensor) and differ(list(values))
    if not sequence:
        array = _normal(values, name, None)
        return InputPart(name, array.shape[1:], _kind(array, name))
    steps = _sequences(values, None, name)
    if any(len(each) == 0 for each in steps):
        empty = next(row for row, each in enumerate(steps) if len(each) == 0)
        raise DataError(f"sample {empty + 1} of input {name!r} has no steps", "leave it out")
    inner = {each.shape[1:] for each in steps}
    if len(inner) > 1:
        raise DataError(
            f"steps of input {name!r} have shapes {' and '.join(map(str, sorted(inner)))}",
            "give sequences that differ in their first axis alone",
        )
    longest = max(map(len, steps))
    kind = _kind(np.concatenate([each.reshape(-1) for each in steps]), name)
    return InputPart(name, (longest, *inner.pop()), "numbers" if kind == "pixels" else kind, True)


def _kind(array: Array, name: str) -> PartKind:
    if array.dtype == np.bool_:
        return "flags"
    if array.dtype == np.uint8 and array.ndim > 2:
        return "pixels"
    if array.dtype.kind in "ui":
        return "tokens"
    mask = name == "mask" or name.endswith("_mask")
    return "flags" if mask and bool(np.isin(array, (0, 1)).all()) else "numbers"


def _normal(values: Any, name: str, kind: PartKind | None) -> Array:
    """Values of one input as an array of numbers, images channels first."""
    try:
        if isinstance(values, list) and any(isinstance(each, Tensor) for each in values):
            values = [as_array(each) for each in values]
        array = as_array(values) if isinstance(values, Tensor) else np.asarray(values)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim == 0 or array.dtype.kind not in "buif":
        raise DataError(
            f"input {name!r} is {array.dtype}, not an array of numbers with an axis of samples",
            "give numbers, one row per sample",
        )
    images = array.dtype == np.uint8 and array.ndim > 2 and kind in (None, "pixels")
    return normalised_inputs(array, name) if images else array


def _sequences(values: Any, lengths: Any, name: str) -> list[Array]:
    """The steps of every sample; of a padded array those that `lengths` says."""
    if lengths is None:
        return [as_array(each) for each in values]
    counts = as_array(lengths).reshape(-1)
    if len(counts) != len(values):
        raise DataError(
            f"there are {len(values)} samples of input {name!r} and {len(counts)} lengths",
            "give one for each",
        )
    return [as_array(each)[: int(n)] for each, n in zip(values, counts, strict=True)]


def _checked(array: Array, part: InputPart) -> Array:
    if array.shape[1:] != part.shape:
        raise DataError(
            f"samples of input {part.name!r} have shape {array.shape[1:]}, the model takes "
            f"{part.shape}",
            "give samples like those it was trained on",
        )
    _check_values(array, part)
    return array


def _check_values(array: Array, part: InputPart) -> None:
    whole = part.kind == "tokens"
    if not np.isfinite(array).all():
        raise DataError(f"input {part.name!r} has NaN or infinite numbers", "clean it first")
    if whole and array.size and (array.min() < 0 or (array != np.round(array)).any()):
        raise DataError(
            f"input {part.name!r} has {array.min() if array.min() < 0 else 'fractions'}, but "
            "tokens are whole numbers from 0 on",
            "number them from 0, or give all of them as floating point",
        )
    if whole and array.size and array.max() >= _EXACT:
        raise DataError(
            f"input {part.name!r} has token {array.max()}, and tokens are below {_EXACT}",
            "number them anew from 0 on",
        )
