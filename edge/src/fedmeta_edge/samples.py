"""A device's own samples, from a .csv or an .npz file, in the form that its model takes."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmeta_edge.arrays import read_arrays
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.model import Array, Model
from fedmeta_edge.parts import joined, numbers_of_texts

_GAPS = ("", "na", "n/a", "#n/a", "nan", "null", "?", "-")  # what a missing value is written as


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a device.

    Args:
        inputs: (n, *input_shape) float32, raw: the model scales them itself.
        labels: (n,) class numbers or (n, outputs) values; None where the file has none.
    """

    inputs: Array
    labels: Array | None


def read_samples(
    path: Path | str, model: Model, label: str | None = None, labelled: bool = True
) -> Samples:
    """The samples in a file.

    Args:
        path: a .csv file with a header, or an .npz file with arrays `x` and `y`. Byte images may be
            (n, height, width) or (n, height, width, channels).
        model: says which columns or which shape are wanted, and what classes there are.
        label: name of the label column or array; None: as in training, else "label", in .csv, "y"
            in .npz files.
        labelled: whether labels must be there.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if not file.is_file():
        raise EdgeError(f"there is no file {file}", "check the path")
    if kind == ".csv":
        label = label or model.label or "label"
        inputs, labels = _from_table(file, model, label)
    elif kind == ".npz":
        inputs, labels = _from_arrays(file, model, label or "y")
    else:
        raise EdgeError(f"{file} is of a kind that is not read", "give .csv or .npz")
    if labels is None and labelled:
        raise EdgeError(
            f"{file} has no labels {label or ('label' if kind == '.csv' else 'y')!r}",
            "add them, or name them with --label",
        )
    if len(inputs) == 0:
        raise EdgeError(f"{file} has no samples", "give at least one")
    if not np.isfinite(inputs).all():
        row = int(np.argmax(~np.isfinite(inputs).reshape(len(inputs), -1).all(axis=1)))
        raise EdgeError(f"sample {row + 1} of {file} has NaN or infinite numbers", "clean it first")
    return Samples(inputs, None if labels is None else _numbered(file, model, labels))


def _from_table(file: Path, model: Model, label: str) -> tuple[Array, Array | None]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            header, *rows = [row for row in csv.reader(opened) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EdgeError(
            f"{file} is not a CSV text in UTF-8 ({error})", "save it as such"
        ) from error
    header = [name.strip() for name in header]
    other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        raise EdgeError(f"{file} has {other!r} between its columns", "save it with commas there")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise EdgeError(
                f"{file} row {number} has {len(row)} values for {len(header)} columns",
                "give one value per column, separated by commas",
            )
    named = list(model.features) or [name for name in header if name != label]
    wanted = model.columns or [(name, ()) for name in named]
    if model.text is not None:
        wanted = ((model.text["column"], ()),)
    where = {name: place for place, name in enumerate(header)}
    for name, _ in wanted:
        if name not in where:
            raise EdgeError(f"{file} has no column {name!r}", f"it has {', '.join(header[:20])}")
    labels = None
    if label in where:
        labels = np.array([row[where[label]].strip() for row in rows])
    if model.text is not None:
        place = where[model.text["column"]]
        return numbers_of_texts([row[place].strip() for row in rows], model.text), labels
    count = sum(max(1, len(categories)) for _, categories in wanted)
    if count != math.prod(model.input_shape):
        raise EdgeError(
            f"{file} has {count} feature columns, the model takes shape {model.input_shape}",
            "give the columns that it was trained on, or an .npz file",
        )
    inputs = np.empty((len(rows), count), np.float32)
    for number, row in enumerate(rows):
        values: list[float] = []
        for name, categories in wanted:
            text, start = row[where[name]].strip(), len(values)
            if model.means and text.lower() in _GAPS:
                values += model.means[start : start + max(1, len(categories))]
            elif categories:
                values += [float(text == each) for each in categories]
            else:
                values.append(_number(file, name, number, text))
        inputs[number] = values
    return inputs.reshape(len(rows), *model.input_shape), labels


def _number(file: Path, column: str, row: int, text: str) -> float:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        raise EdgeError(
            f"{file} column {column!r}, row {row + 1} is {text.strip()!r}, not a number",
            "fill it or drop the row",
        ) from None


def _from_arrays(file: Path, model: Model, label: str) -> tuple[Array, Array | None]:
    names = {str(each["name"]) for each in model.inputs}
    asked = {"x", label, "lengths", *names, *(f"{name}_lengths" for name in names)}
    arrays = read_arrays(file, asked if names else {"x", label})
    if names:
        arrays["x"] = joined(arrays, model.inputs, file)
    if "x" not in arrays:
        raise EdgeError(f"{file} has no array 'x'", "save samples as x, labels as y")
    x, labels = arrays["x"], arrays.get(label)
    if x.ndim == 0:
        raise EdgeError(f"x of {file} is a single number", "give (n, *shape) samples")
    if x.dtype.kind not in "buif":
        raise EdgeError(f"x of {file} is of type {x.dtype}", "give numbers")
    x = _shaped(x, model.input_shape)
    if x.shape[1:] != model.input_shape:
        raise EdgeError(
            f"samples of {file} have shape {x.shape[1:]}, the model takes {model.input_shape}",
            "give (n, *shape) samples like those it was trained on",
        )
    if labels is not None and (labels.ndim == 0 or len(labels) != len(x)):
        raise EdgeError(
            f"{file} has {len(x)} samples and {labels.size} labels", "give one for each"
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused
        return x.astype(np.float32), labels


def _shaped(x: Array, shape: tuple[int, ...]) -> Array:
    """Byte images as people have them, with channels last or none, as the model has them."""
    if x.dtype != np.uint8 or x.shape[1:] == shape:
        return x
    if x.ndim == 3:
        return x[:, None]
    return np.moveaxis(x, 3, 1) if x.ndim == 4 else x


def _numbered(file: Path, model: Model, labels: Array) -> Array:
    """Labels as the model counts them: numbers of classes, or values."""
    if not model.classes:
        try:
            with np.errstate(over="ignore"):
                values = np.asarray(labels, np.float32).reshape(len(labels), -1)
        except (ValueError, TypeError):
            values = np.full((len(labels), model.outputs), np.nan, np.float32)
        if values.shape[1] != model.outputs or not np.isfinite(values).all():
            raise EdgeError(
                f"labels of {file} are not {model.outputs} finite numbers per sample",
                "give the values that the model predicts",
            )
        return values
    if labels.ndim != 1:
        raise EdgeError(f"labels of {file} have shape {labels.shape}", "give one class per sample")
    numbers = {name: number for number, name in enumerate(model.classes)}
    texts = [_class_name(value) for value in labels.tolist()]
    if labels.dtype.kind in "iu" and not any(name.lstrip("-").isdigit() for name in numbers):
        # Classes with names of their own may be given by their number.
        texts = [model.classes[int(t)] if 0 <= int(t) < len(numbers) else t for t in texts]
    if unknown := [text for text in texts if text not in numbers]:
        raise EdgeError(
            f"the model knows no class {unknown[0]!r}, which {file} has",
            f"its classes are {', '.join(model.classes[:20])}",
        )
    return np.array([numbers[text] for text in texts], np.int64)


def _class_name(value: object) -> str:
    """A label as text; 3.0 is class 3.

    Example:
        >>> _class_name("3.0"), _class_name(2), _class_name("walking")
        ('3', '2', 'walking')
    """
    text = str(value)
    whole, point, zeros = text.partition(".")
    return whole if point and whole.lstrip("-").isdigit() and not zeros.strip("0") else text
