"""Your own table in a .csv or .parquet file: a label column, features, and if you like nodes."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.core.errors import DataError, MissingExtraError, nearest
from fedmeta.data.federation import TaskKind
from fedmeta.data.pool import Array, Pool, pool_from

Columns = dict[str, list[Any]]

_WHOLE = re.compile(r"(0|-?[1-9][0-9]{0,18})(\.0*)?")


def read_table(
    path: Path,
    task: TaskKind = "classification",
    label: str | None = None,
    node: str | None = None,
    features: Sequence[str] | None = None,
) -> Pool:
    """The pool in a .csv (comma-separated, UTF-8, with a header) or .parquet file.

    Blanks around the values of a .csv do not count. Rows in error messages are counted from 1,
    without the header.

    Args:
        path: the file.
        task: "classification" or "regression".
        label: name of the label column; None: "label".
        node: name of the column that says whose sample it is, if any.
        features: names of the columns that are features, in the order in which they become
            inputs; other columns are ignored. None or empty: all but label and node, in the order
            of the file. Features must be numbers.
    """
    columns = read_columns(path)
    label = label or "label"
    for name in (label, node):
        if name is not None and name not in columns:
            raise DataError(f"{path} has no column {name!r}", nearest(name, columns))
    for name in features or ():
        if name not in columns:
            raise DataError(f"{path} has no feature column {name!r}", nearest(name, columns))
    features = features or [name for name in columns if name not in (label, node)]
    if not features:
        raise DataError(f"{path} has no column besides {label!r}", "add feature columns")
    inputs = np.stack([column_numbers(path, name, columns[name]) for name in features], axis=1)
    if task == "regression":
        labels = column_numbers(path, label, columns[label])
    else:
        labels = _labels(path, label, columns[label])
    owners = None if node is None else _texts(path, node, columns[node])
    return pool_from(
        inputs,
        labels,
        task=task,
        name=path.stem,
        owners=owners,
        origin=path.name,
        features=features,
    )


def read_columns(path: Path) -> Columns:
    """All columns by name, as they are written: texts in a .csv, values in a .parquet file."""
    return _parquet_columns(path) if path.suffix.lower() == ".parquet" else _csv_columns(path)


def _csv_columns(path: Path) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV text in UTF-8 ({error})", "save it as such") from None
    header = [name.strip() for name in header]
    if not header:
        raise DataError(f"{path} is empty", "give a header and rows of samples")
    other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        raise DataError(
            f"{path} has {other!r} between its columns",
            "save it with commas there, and with points in decimal numbers",
        )
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path} has two columns {twice!r}", "give every column its own name")
    if not rows:
        raise DataError(f"{path} has a header but no rows", "add rows of samples")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise DataError(
                f"{path} row {number} has {len(row)} values for {len(header)} columns",
                "give one value per column, separated by commas",
            )
    columns = ([value.strip() for value in column] for column in zip(*rows, strict=True))
    return dict(zip(header, columns, strict=True))


def _parquet_columns(path: Path) -> Columns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow, which reads .parquet files,", "parquet") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a parquet file ({error})", "save it again") from None
    if not table.num_rows:
        raise DataError(f"{path} has no rows", "add rows of samples")
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _check_present(path: Path, name: str, values: list[Any]) -> None:
    for row, value in enumerate(values, start=1):
        if value is None or value == "" or value != value:  # only NaN differs from itself
            raise DataError(
                f"{path} has no value in column {name!r}, row {row}", "fill it or drop the row"
            )


def column_numbers(path: Path, name: str, values: list[Any]) -> Array:
    """A column as finite numbers, or an error that names the row."""
    _check_present(path, name, values)
    try:
        numbers = np.array(values, dtype=np.float64)
    except (ValueError, TypeError):
        numbers = np.empty(0)
    if numbers.shape != (len(values),):
        row, value = next((r, v) for r, v in enumerate(values, start=1) if not _is_number(v))
        raise DataError(
            f"{path} column {name!r}, row {row} is {value!r}, not a number",
            "give numbers, drop the column, or name it with --node if it says whose sample it is",
        )
    if not np.isfinite(numbers).all():
        row = int((~np.isfinite(numbers)).argmax())
        raise DataError(
            f"{path} column {name!r}, row {row + 1} is {values[row]!r}, not a finite number",
            "fill it or drop the row",
        )
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _texts(path: Path, name: str, values: list[Any]) -> Array:
    _check_present(path, name, values)
    return np.array([str(value) for value in values])


def _labels(path: Path, name: str, values: list[Any]) -> Array:
    """Whole numbers where all labels are such, so that class 10 comes after 9; texts otherwise.

    Numbers are written "12" or "12.0". Others stay texts ("01" is not "1"), and so do all where
    two ways to write one number meet. Fractions and the like, which are no classes, are left for
    `pool_from` to refuse.
    """
    texts, of_row = np.unique(_texts(path, name, values), return_inverse=True)
    whole = [int(match[1]) for text in texts if (match := _WHOLE.fullmatch(text))]
    if len(set(whole)) == len(texts) and all(abs(number) < 2**63 for number in whole):
        return np.array(whole, np.int64)[of_row]
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        return texts[of_row]
    classes = np.isfinite(numbers) & (numbers == np.round(numbers))
    return (texts if classes.all() else numbers)[of_row]
