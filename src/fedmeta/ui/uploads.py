"""The user's own files as samples for a model: tables and images.

A file's name is only ever shown, never a path. A table is read through a temporary file that is
gone at once; what was read is forgotten with the process.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedmeta.core.errors import DataError, FedmetaError, MissingExtraError
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.columns import Table
from fedmeta.data.encoding import Encoding, model_encoding
from fedmeta.data.pool import Array
from fedmeta.data.readers.image_folder import SUFFIXES, opened_image
from fedmeta.data.readers.table import (
    TABLES,
    as_written,
    inputs_of_table,
    is_table,
    open_table,
)
from fedmeta.data.splitting import split
from fedmeta.models.meta_model import MetaModel
from fedmeta.ui.adaptation import Labelled

LIMIT = 16 * 2**20
"""Largest file, in bytes."""
MOST_SAMPLES = 500
_BODY_WITHIN = 60  # seconds
_PIXEL_RANGES = (1.0, 16.0, 255.0)

Use = Literal["adapt", "test"]


class TooLargeError(DataError):
    """Something that was sent is larger than the page takes."""

    def __init__(self, most: int) -> None:
        size = f"{most // 2**20} MB"
        super().__init__(f"the file has more than {size}", "use a smaller one, or fedmeta adapt")


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """Samples that a user brought.

    Args:
        inputs: raw, (n, *shape) as the model takes them.
        names: of the samples, for people: a file, or a row of one.
        labels: as written in the file; None where there is none.
        uses: whether to adapt to a sample or to test on it.
        notes: what was done to fit them to the model.
    """

    inputs: Array
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    uses: tuple[Use, ...]
    notes: tuple[str, ...] = ()

    def __add__(self, other: OwnSamples) -> OwnSamples:
        total = len(self.names) + len(other.names)
        if total > MOST_SAMPLES:
            raise DataError(
                f"that makes {total} samples, and the page takes {MOST_SAMPLES}",
                "use fewer, or fedmeta adapt --data FILE",
            )
        return OwnSamples(
            np.concatenate([self.inputs, other.inputs]),
            self.names + other.names,
            self.labels + other.labels,
            self.uses + other.uses,
            tuple(dict.fromkeys(self.notes + other.notes)),
        )


def no_samples(model: MetaModel) -> OwnSamples:
    """A set to add samples to."""
    return OwnSamples(np.empty((0, *model.input_shape), np.float32), (), (), ())


async def read_body(chunks: AsyncIterator[bytes]) -> bytes:
    """The body of a request, refused as soon as it is too large or too slow."""
    content = bytearray()
    try:
        async with asyncio.timeout(_BODY_WITHIN):
            async for chunk in chunks:
                content += chunk
                if len(content) > LIMIT:
                    raise TooLargeError(LIMIT)
    except TimeoutError:
        raise DataError("the file did not come in time", "send it again") from None
    return bytes(content)


def read_upload(
    model: MetaModel, name: str, content: bytes, label: str, *, invert: bool
) -> OwnSamples:
    """The samples in a file.

    Args:
        model: that will adapt to them.
        name: of the file; its ending says what it is.
        content: of the file.
        label: name of the label column of a table.
        invert: turn images dark to light.
    """
    shown = Path(name.replace("\\", "/")).name[:80] or "file"
    if is_table(Path(shown)):
        return _table(model, shown, content, label)
    if Path(shown).suffix.lower() in SUFFIXES:
        return _image(model, shown, content, invert)
    kinds = ", ".join([*TABLES, *sorted(SUFFIXES)])
    raise DataError(f"{shown} is of a kind that is not read here", f"give {kinds}")


def split_uploads(
    model: MetaModel, own: OwnSamples, labels: Sequence[Any], uses: Sequence[Any]
) -> tuple[Labelled, Labelled, Array]:
    """What to adapt to, what to measure on, and all samples that are not adapted to.

    Args:
        model: that adapts.
        own: the samples.
        labels: what the user calls them; None or "": unknown.
        uses: "adapt" or "test".
    """
    if not isinstance(labels, list) or not isinstance(uses, list):
        raise DataError("labels and uses are missing", "reload the page")
    if len(labels) != len(own.names) or len(uses) != len(own.names):
        raise DataError(
            f"there are {len(own.names)} samples but {len(labels)} labels", "reload the page"
        )
    known = np.array([label not in (None, "") for label in labels], bool)
    adapts = np.array([use == "adapt" for use in uses], bool) & known
    if not adapts.any():
        raise DataError("no sample to adapt to has a label", "label at least one")
    tests = np.array([use != "adapt" for use in uses], bool)
    numbers = _label_numbers(model, [labels[i] if known[i] else None for i in range(len(labels))])
    judged = tests & known
    return (
        Labelled(own.inputs[adapts], numbers[adapts]),
        Labelled(own.inputs[judged], numbers[judged]),
        own.inputs[tests],
    )


def _label_numbers(model: MetaModel, labels: Sequence[Any]) -> Array:
    """Class numbers or values; what is unknown is 0, and not looked at."""
    if model.task.kind == "regression":
        if model.task.outputs != 1:
            raise DataError(
                f"this model predicts {model.task.outputs} numbers at once", "use fedmeta adapt"
            )
        return np.array([[_value(label)] for label in labels], np.float64)
    numbers = {name: number for number, name in enumerate(model.task.class_names)}
    unknown = [label for label in labels if label is not None and str(label) not in numbers]
    if unknown:
        raise DataError(
            f"the model knows no class {str(unknown[0])[:40]!r}",
            f"its classes are {', '.join(model.task.class_names[:20])}",
        )
    return np.array([0 if each is None else numbers[str(each)] for each in labels], np.int64)


def _value(label: Any) -> float:
    try:
        value = 0.0 if label is None else float(label)
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value):
        raise DataError(f"label {str(label)[:40]!r} is not a number", "give a number")
    return value


def _table(model: MetaModel, shown: str, content: bytes, label: str) -> OwnSamples:
    with tempfile.TemporaryDirectory() as folder:
        ending = next(each for each in sorted(TABLES, key=len) if shown.lower().endswith(each))
        file = Path(folder) / f"table{ending}"
        file.write_bytes(content)
        try:
            known = model_encoding(model.about)
            table = open_table(file, texts=[label, *(as_written(known) if known else ())])
            others = [name for name in table.names if name != label]
            encoding = known or Encoding.of_features(others)
            _check_columns(shown, table, encoding, model)
            found = inputs_of_table(table, encoding)
            if found.gaps.any():
                raise DataError(f"{shown} has rows with missing values", "leave them out")
        except FedmetaError as error:  # told of the user's file, not of where it was read
            raise DataError(error.problem.replace(str(file), shown), error.remedy) from error
        labels: list[str | None] = [None] * table.rows
        if label in table.names:
            column = table.column(label, written=True)
            labels = [column.texts[code] if code >= 0 else None for code in column.codes]
    _label_numbers(model, labels)  # what the model does not know is told now
    rows = tuple(f"{shown}, row {number + 1}" for number in range(len(labels)))
    shaped = found.inputs.reshape(len(labels), *model.input_shape)
    notes = (f"labels of {shown} from its column {label!r}",) if label in table.names else ()
    return OwnSamples(shaped, rows, tuple(labels), _uses(labels), (*notes, *found.notes))


def _check_columns(shown: str, table: Table, encoding: Encoding, model: MetaModel) -> None:
    for name in encoding.names:
        if name not in table.names:
            raise DataError(
                f"{shown} has no column {name!r}",
                f"the model was trained on {', '.join(encoding.names[:20])}",
            )
    wanted, count = int(np.prod(model.input_shape)), len(encoding.features)
    if encoding.text is None and count != wanted:
        raise DataError(
            f"{shown} has {count} feature columns, the model takes {wanted}",
            "drop the others, or drop an image if the model takes images",
        )
    if table.rows > MOST_SAMPLES:
        raise DataError(
            f"{shown} has {table.rows} rows, and the page takes {MOST_SAMPLES}",
            "use fewer, or fedmeta adapt --data FILE",
        )


def _uses(labels: Sequence[str | None]) -> tuple[Use, ...]:
    """Half of the labelled samples of every class to adapt to, the rest to test on."""
    known = np.array([i for i, label in enumerate(labels) if label is not None], np.int64)
    if len(known) < 2:
        return tuple("adapt" if label is not None else "test" for label in labels)
    strata = np.unique([str(label) for label in labels], return_inverse=True)[1]
    if len(set(strata[known])) == len(known):  # values, or every sample a class of its own
        strata = np.zeros(len(labels), np.int64)
    ((support, _),) = split([known], strata, 0.5, generator(0, DataPurpose.SPLIT))
    chosen = set(support.tolist())
    return tuple("adapt" if i in chosen else "test" for i in range(len(labels)))


def _image(model: MetaModel, shown: str, content: bytes, invert: bool) -> OwnSamples:
    try:
        from PIL import ImageOps
        from PIL.Image import Resampling
    except ImportError:
        raise MissingExtraError("pillow, which reads images,", "images") from None
    shape = model.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"the model takes no images, and {shown} is one", "give a table instead")
    with opened_image(io.BytesIO(content), shown) as image:
        upright = ImageOps.exif_transpose(image)
        small = upright.convert("L" if shape[0] == 1 else "RGB").resize(
            (shape[2], shape[1]), Resampling.BOX
        )
    pixels = np.asarray(small).reshape(shape[1], shape[2], shape[0])
    shares = np.moveaxis(pixels, 2, 0).astype(np.float32) / 255
    peak = pixel_range(model)
    note = f"images made {shape[1]} × {shape[2]}, pixels from 0 to {peak:.0f}"
    return OwnSamples(
        (peak * (1 - shares if invert else shares))[None], (shown,), (None,), ("adapt",), (note,)
    )


def pixel_range(model: MetaModel) -> float:
    """The brightest pixel of the data that a model was trained on: 1, 16 or 255.

    The model's file does not say it, but its scaling does: the nearest to mean + 2 deviations.
    """
    bright = float(np.max(model.scaling.mean + 2 * model.scaling.deviation))
    return min(_PIXEL_RANGES, key=lambda peak: abs(np.log(peak / max(bright, 1e-6))))
