"""What a table may ask for: columns, and memory by what its file promises.

These checks look at headers alone, before a reader makes anything.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import check_input, input_budget, open_regular

MOST_COLUMNS = 20_000
_LETTER = 4  # bytes in memory for each byte of a text, at least
_PART = 2**20  # bytes that are unpacked at a time
_VALUE = 16  # bytes of a number in memory, as it is read and as it is used


def check_width(path: Path, columns: int) -> None:
    """Refuse a table with too many columns."""
    if columns > MOST_COLUMNS:
        raise DataError(
            f"{path} has {columns} columns, and at most {MOST_COLUMNS} are read",
            "drop those that are not needed, or give the numbers as x in an .npz file",
        )


def check_header(path: Path, names: Sequence[str]) -> None:
    """Refuse a table with too many columns, or with two of one name.

    Example:
        >>> check_header(Path("t.csv"), ["a", "b", "a"])
        Traceback (most recent call last):
        fedmeta.core.errors.DataError: t.csv has two columns 'a': give every column its own name
    """
    check_width(path, len(names))
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"{path} has two columns {name!r}", "give every column its own name")


def check_unpacked(path: Path) -> None:
    """Refuse a gzipped text that would become larger than its budget."""
    with open_regular(path) as raw, gzip.GzipFile(fileobj=raw) as file:
        stored = os.fstat(raw.fileno()).st_size
        most, unpacked = input_budget(stored), 0
        while unpacked * _LETTER <= most and (part := file.read(_PART)):
            unpacked += len(part)
    check_input(path, unpacked * _LETTER, stored)


def check_parquet(path: Path, file: Any) -> None:
    """Refuse a Parquet file that would become larger than its budget.

    Args:
        path: where it lies.
        file: the same as a `pyarrow.parquet.ParquetFile`.
    """
    about = file.metadata
    check_header(path, [about.schema.column(place).path for place in range(about.num_columns)])
    if about.num_rows < 0:
        raise DataError(f"{path} is not a parquet file (it has {about.num_rows} rows)", "save it")
    stored = path.stat().st_size
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(c) for group in groups for c in range(group.num_columns)]
    pages = sum(chunk.total_uncompressed_size for chunk in chunks)
    values = about.num_rows * max(1, about.num_columns)
    check_input(path, max(values * _VALUE, pages), stored)
    # A text that is written once may be repeated by every row.
    longest: dict[int, int] = {}
    for group in groups:
        for place in range(group.num_columns):
            chunk = group.column(place)
            if chunk.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
                worst = chunk.total_uncompressed_size * group.num_rows
                longest[place] = longest.get(place, 0) + worst
    if sum(longest.values()) > input_budget(stored):
        texts = [about.schema.column(place).path for place in longest]
        check_input(path, values * _VALUE + _text_bytes(path, texts), stored)


def _text_bytes(path: Path, names: list[str]) -> int:
    """The bytes of all texts of these columns once every row has its own, without making them."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path, read_dictionary=names)
    total = 0
    for batch in file.iter_batches(batch_size=4096, columns=names):
        for column in batch.columns:
            if not pyarrow.types.is_dictionary(column.type):
                total += column.nbytes
                continue
            lengths = pyarrow.compute.binary_length(column.dictionary)
            rows = pyarrow.compute.take(lengths, column.indices)
            total += pyarrow.compute.sum(rows).as_py() or 0
    return int(total)
