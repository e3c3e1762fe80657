"""The columns of a .csv, .tsv or gzipped .csv file in UTF-8 with a header.

Two readers give the same columns. pyarrow (the extra `parquet`) takes files of some size where it
is installed: it parses on all cores and keeps numbers as numbers, about twenty times as fast as
Python's own module, which takes the rest: the core needs nothing beyond Python, small files are
read before pyarrow would be imported, and what is wrong with a file is found with its line numbers.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import mmap
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import open_regular
from fedmeta.data.columns import GAPS, Column, Table, distinct, from_arrow, from_texts
from fedmeta.data.faults import counted, such_as
from fedmeta.data.numerals import decimal_mark, numbers_in
from fedmeta.data.readers.budget import check_unpacked, check_width

SMALL = 256 * 1024
"""Bytes up to which Python's own module reads a file."""

_HEAD = 64 * 1024  # characters that delimiter and decimal mark are found from
_MARKS = ",;\t|"
_TOLD = re.compile(r"sep=(.)\r?\n?")  # how a spreadsheet is told what is between values
_HEADER_WITHIN = 20  # lines, where others are above it


class Dialect(NamedTuple):
    """What is between values, and between whole and fraction of a number."""

    delimiter: str
    decimal: str


def read_csv(
    path: Path,
    delimiter: str | None = None,
    decimal: str | None = None,
    written: Sequence[str] = (),
) -> Table:
    """The columns of the file.

    Args:
        path: the file; a name that ends in .gz is unpacked.
        delimiter: between values; None: found from the first lines.
        decimal: "." or ","; None: found from the first lines.
        written: columns that will be asked for as they are written.
    """
    try:
        if _zipped(path):
            check_unpacked(path)
        dialect = dialect_of(path, delimiter, decimal)
        line, header = next(records(path, dialect), (1, []))
        check_width(path, len(header))
        fast = path.stat().st_size > SMALL and find_spec("pyarrow") is not None
        table = _with_arrow(path, dialect, header, written, line - 1) if fast and header else None
        return table or _with_python(path, dialect)
    except (UnicodeError, csv.Error, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a CSV text in UTF-8 ({error})",
            "save it as such: 'CSV UTF-8' in a spreadsheet, or iconv -t UTF-8 -f its encoding",
        ) from None


def dialect_of(path: Path, delimiter: str | None = None, decimal: str | None = None) -> Dialect:
    """The dialect of a file by its first lines, where it is not given."""
    with _opened(path) as file:
        head = file.read(_HEAD)
    if "\0" in head:
        raise DataError(f"{path} is no text: it has NUL bytes", "save it as a CSV text in UTF-8")
    return sniffed(head, delimiter, decimal)


def sniffed(head: str, delimiter: str | None = None, decimal: str | None = None) -> Dialect:
    r"""The dialect of a text by its first lines, where it is not given.

    The delimiter is the one that cuts most lines into as many values as most have, the most
    values where several do, or what a first line says as "sep=;".

    Example:
        >>> sniffed("a;b;label\n1,5;2;x\n0,25;3;y\n")
        Dialect(delimiter=';', decimal=',')
    """
    cut = len(head) == _HEAD
    if (told := _TOLD.match(head)) is not None:
        head, delimiter = head[told.end() :], delimiter or told[1]

    def records(mark: str) -> list[list[str]]:
        rows = [
            row
            for row in islice(csv.reader(io.StringIO(head, newline=""), delimiter=mark), 100)
            if row
        ]
        return rows[:-1] if cut and 1 < len(rows) < 100 else rows

    if delimiter is None:
        scores = {}
        for mark in _MARKS:
            rows = records(mark)
            width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
            if width > 1:
                scores[mark] = (count / len(rows), width)
        delimiter = max(scores, key=lambda mark: scores[mark], default=",")
    if decimal is None:
        cells = [cell for row in records(delimiter)[1:] for cell in row]
        decimal = decimal_mark(cells, delimiter)
    return Dialect(delimiter, decimal)


def _zipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with ExitStack() as files:
        raw: Any = files.enter_context(open_regular(path))
        if _zipped(path):
            raw = files.enter_context(gzip.GzipFile(fileobj=raw))
        wide = raw.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # a spreadsheet's text
        raw.seek(0)
        encoding = "utf-16" if wide else "utf-8-sig"
        yield files.enter_context(io.TextIOWrapper(raw, newline="", encoding=encoding))


def _reader(file: TextIO, dialect: Dialect) -> Any:
    return csv.reader(file, delimiter=dialect.delimiter)


def records(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """The line that each record begins in, counted from 1, and its values; without blank ones."""
    with _opened(path) as file:
        reader, line = _reader(file, dialect), 1
        for row in reader:
            told = line == 1 and _TOLD.fullmatch(dialect.delimiter.join(row))
            if any(row) and not told:
                yield line, row
            line = reader.line_num + 1


def _with_python(path: Path, dialect: Dialect) -> Table:
    found = records(path, dialect)
    _, header = next(found, (1, []))
    names, faults = _header(header)
    if not header:
        raise DataError(f"{path} is empty", "give a header and rows of samples")
    _check_place_of_header(path, dialect)
    width, rows, lines, short = len(names), [], [], []
    least = max((place for place, name in enumerate(header, 1) if name.strip()), default=0)
    for line, row in found:
        if len(row) > width and not any(row[width:]):  # delimiters after the last value
            del row[width:]
        elif least <= len(row) < width:
            row += [""] * (width - len(row))
        if len(row) == width:
            rows.append(row)
            lines.append(line)
        else:
            short.append((line, len(row)))
    if short:
        shown = ", ".join(f"line {line} has {count}" for line, count in short[:3])
        faults.append(
            (
                f"{counted(len(short), 'row')} without the header's {width} values ({shown})",
                "give one value per column, in quotes where it holds the delimiter",
            )
        )
    elif not rows:
        raise DataError(f"{path} has a header but no rows", "add rows of samples")
    by_name = (
        dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    )

    def load(name: str, written: bool) -> Column:
        texts, codes = distinct(by_name[name])
        return from_texts(name, texts, codes, decimal=dialect.decimal, written=written)

    def place(wanted: Sequence[int]) -> list[str]:
        return [f"line {lines[row]}" for row in wanted]

    return Table(str(path), len(rows), tuple(by_name), load, place, tuple(faults))


def _check_place_of_header(path: Path, dialect: Dialect) -> None:
    """Refuse a file with lines of something else above its header, which is named."""
    head = list(islice(records(path, dialect), 100))
    width = Counter(len(row) for _, row in head).most_common(1)[0][0]
    first, names = head[0]
    odd = len(names) < width or sum(not name.strip() for name in names) > 1
    for line, row in head[1:_HEADER_WITHIN] if odd else ():
        cells = [cell.strip() for cell in row]
        whole = len(cells) == width > 1 and all(cells) and len({*cells}) == width
        if whole and np.isnan(numbers_in(cells, dialect.decimal)).all():
            raise DataError(
                f"{path}: line {first} ({such_as(names[:1])}) is no header, but line {line} "
                f"({such_as(cells)}) looks like one",
                "delete the lines above it",
            )


def _header(header: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Names without blanks around them, and what is wrong with them."""
    names = [name.strip() for name in header]
    if len({*names}) == len(names):
        return names, []
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    # The first one of a name keeps it, so that everything else can be checked too.
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    problem = f"{counted(len(twice), 'name')} for several columns ({such_as(twice)})"
    return names, [(problem, "give every column its own name")]


def _with_arrow(
    path: Path, dialect: Dialect, header: Sequence[str], written: Sequence[str], above: int
) -> Table | None:
    """None where the file is not as it should be: Python's reader then says where."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    names, faults = _header(header)
    if faults:
        return None
    texts = pa.dictionary(pa.int32(), pa.utf8())
    gaps = [each for gap in GAPS for each in {gap, gap.upper(), gap.title(), "NaN"}]
    raw = dict(zip(names, header, strict=True))
    broken: list[Any] = []

    def skip(row: Any) -> str:
        broken.append(row)
        return "skip"

    zipped = _zipped(path)
    parsing = arrow.ParseOptions(
        delimiter=dialect.delimiter,
        newlines_in_values=zipped or _has_quotes(path),
        invalid_row_handler=skip,
    )

    def parsed(types: Mapping[str, Any], read: Callable[..., Any]) -> Any:
        converting = arrow.ConvertOptions(
            column_types=types,
            null_values=gaps,
            strings_can_be_null=False,  # which texts are gaps depends on the column: `from_texts`
            quoted_strings_can_be_null=True,
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            decimal_point=dialect.decimal,
        )
        blocks = arrow.ReadOptions(block_size=2 << 20, skip_rows=above)
        with pa.input_stream(str(path), compression="gzip" if zipped else None) as stream:
            return read(stream, blocks, parsing, converting)

    wanted = {raw[name]: texts for name in written if name in raw}
    try:
        # The types of the first block are asked for in all: where pyarrow has to find them by
        # itself it keeps the whole text until the end.
        with parsed(wanted, arrow.open_csv) as first:
            seen = {each.name: _whole_type(each.type, texts) for each in first.schema}
        broken.clear()
        try:
            read = parsed(
                {**{k: v for k, v in seen.items() if v is not None}, **wanted}, arrow.read_csv
            )
        except pa.ArrowInvalid:
            broken.clear()
            read = parsed(wanted, arrow.read_csv)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None
    if broken or read.column_names != list(header) or not read.num_rows:
        return None
    if _has_blank_rows(read):
        return None
    columns = dict(zip(names, read.columns, strict=True))
    rows = read.num_rows

    def load(name: str, as_written: bool) -> Column:
        return from_arrow(name, columns[name], decimal=dialect.decimal, written=as_written)

    def place(wanted: Sequence[int]) -> list[str]:
        found, asked = {}, {*wanted}
        for row, (line, _) in enumerate(islice(records(path, dialect), 1, max(wanted) + 2)):
            if row in asked:
                found[row] = f"line {line}"
        return [found[row] for row in wanted]

    return Table(str(path), rows, tuple(names), load, place)


def _has_blank_rows(read: Any) -> bool:
    """Whether some row has no value at all, as rows of delimiters alone have not."""
    import pyarrow as pa
    import pyarrow.compute as compute

    gone: Any = None
    for column in read.columns:
        text = pa.types.is_dictionary(column.type)
        blank = compute.is_in(column, value_set=pa.array([""])) if text else compute.is_null(column)
        gone = blank if gone is None else compute.and_(gone, blank)
        if not compute.any(gone).as_py():
            return False
    return True


def _whole_type(kind: Any, texts: Any) -> Any:
    """What a column of that type may turn out to be further down; None: anything."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return None
    if pa.types.is_integer(kind):
        return pa.float64()
    return texts if pa.types.is_string(kind) else kind


def _has_quotes(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0
