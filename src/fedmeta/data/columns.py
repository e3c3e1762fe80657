"""The columns of a table, whatever it came from: numbers, or texts as places in a list of them.

What a column holds is decided by all of its values: `number` (blanks around them do not count,
see `fedmeta.data.numerals`), `boolean` (true and false in any case), `date` (ISO, day.month.year,
or with slashes), `text`, or `mixed`: mostly numbers, which is a fault and not a category. A value
is missing where a cell is blank or says one of `GAPS`, and among numbers where it says none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from fedmeta.data.numerals import numbers_in
from fedmeta.data.pool import Array

Kind = Literal["number", "boolean", "text", "date", "mixed", "empty", "other"]

GAPS = (
    *("", "na", "n/a", "n.a.", "nan", "-nan", "<na>", "null", "?", "-", "--"),
    *("#n/a", "#na", "#div/0!", "#value!", "#ref!", "#num!"),
)
"""What a missing value is written as, in any case; labels and nodes are missing where blank."""

_DATE = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([T ]\d{1,2}:\d{2}.*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
_PARTS = re.compile(
    r"(\d{1,2})([./])(\d{1,2})\2(\d{4})([T ](\d{1,2}):(\d{2})(:(\d{2})([.,]\d{1,6})?)?)?"
)


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Args:
        name: of the column.
        kind: what it holds.
        numbers: (N,) float64, NaN where there is none; dates in seconds; empty for texts.
        texts: the different values of text (and of mixed), in the order they first appear.
        codes: (N,) places in `texts`, -1 where a value is missing; empty for numbers.
    """

    name: str
    kind: Kind
    numbers: Array = field(default_factory=lambda: np.empty(0))
    texts: tuple[str, ...] = ()
    codes: Array = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def gaps(self) -> Array:
        """(N,) whether a value is missing."""
        return self.codes < 0 if len(self.codes) else np.isnan(self.numbers)

    def only(self, rows: Array) -> Column:
        """The same with some of the rows."""
        numbers, codes = (each[rows] if len(each) else each for each in (self.numbers, self.codes))
        return Column(self.name, self.kind, numbers, self.texts, codes)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, read when they are asked for.

    Args:
        where: the file, for people.
        rows: how many there are.
        load: name, as written or not → the column.
        names: of the columns, in the order of the file.
        place: row numbers from 0 → where they are, for people ("line 7").
        faults: what is wrong with the file itself, though it can be read.
    """

    where: str
    rows: int
    names: tuple[str, ...]
    load: Callable[[str, bool], Column]
    place: Callable[[Sequence[int]], list[str]]
    faults: tuple[tuple[str, str], ...] = ()

    def column(self, name: str, *, written: bool = False) -> Column:
        """A column; as it is `written`, texts without a look at what they mean."""
        return self.load(name, written)


def rows_counted(rows: Sequence[int]) -> list[str]:
    """Places in data that have no lines.

    Example:
        >>> rows_counted([0, 6])
        ['row 1', 'row 7']
    """
    return [f"row {row + 1}" for row in rows]


def from_texts(
    name: str, texts: Sequence[str], codes: Array, *, decimal: str = ".", written: bool = False
) -> Column:
    """A column of which the different texts and their places are known.

    Args:
        name: of the column.
        texts: the different ones, as in the file.
        codes: (N,) places in them; -1: missing.
        decimal: the mark between whole and fraction.
        written: leave them as texts.

    Example:
        >>> column = from_texts("a", ["1,5", " ", "2"], np.array([0, 1, 2, 0]), decimal=",")
        >>> column.kind, column.numbers.tolist()
        ('number', [1.5, nan, 2.0, 1.5])
    """
    missing = {""} if written else {*GAPS}
    stripped = [text.strip() for text in texts]
    known: dict[str, int] = {}
    places = np.full(len(texts) + 1, -1, np.int32)  # the last one is for -1
    for number, text in enumerate(stripped):
        if text.lower() not in missing:
            places[number] = known.setdefault(text, len(known))
    kept, coded = tuple(known), places[codes]
    if written:
        return Column(name, "text", texts=kept, codes=coded)
    if not kept:
        return Column(name, "empty", np.full(len(codes), np.nan))
    values = np.append(numbers_in(kept, decimal), np.nan)
    good, words = ~np.isnan(values[:-1]), [text.lower() for text in kept]
    if all(each or word == "none" for each, word in zip(good, words, strict=True)) and good.any():
        return Column(name, "number", values[coded])
    if {*words} <= {"true", "false"}:
        truth = np.array([*(float(word == "true") for word in words), np.nan])
        return Column(name, "boolean", truth[coded])
    if all(_DATE.fullmatch(text) for text in kept):
        return Column(name, "date", np.array([*_seconds(kept), np.nan])[coded])
    kind: Kind = "mixed" if 2 * good.sum() >= len(kept) else "text"
    return Column(name, kind, values[coded] if kind == "mixed" else np.empty(0), kept, coded)


def _seconds(texts: Sequence[str]) -> list[float]:
    """Of dates since 1970: ISO, day.month.year, or with slashes where only one order is possible.

    NaN for dates that are written otherwise.

    Example:
        >>> _seconds(["02.01.1970", "01.01.1970 00:01"]), _seconds(["1/31/1970", "2/1/1970"])
        ([86400.0, 60.0], [2592000.0, 2678400.0])
        >>> _seconds(["1/2/1970"])  # of January or of February?
        [nan]
    """
    parts = [_PARTS.fullmatch(text) for text in texts]
    slashes = [each for each in parts if each is not None and each[2] == "/"]
    days = any(int(each[1]) > 12 for each in slashes)
    months = any(int(each[3]) > 12 for each in slashes)

    def moment(text: str, match: re.Match[str] | None) -> float:
        try:
            if match is None:
                found = datetime.fromisoformat(text)
            elif match[2] == "/" and days == months:
                return np.nan
            else:
                day, month = (1, 3) if match[2] == "." or days else (3, 1)
                hour, minute, second = (int(match[each] or 0) for each in (6, 7, 9))
                date = int(match[4]), int(match[month]), int(match[day])
                found = datetime(*date, hour, minute, second)
        except ValueError:
            return np.nan
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        fraction = match and match[10]
        return aware.timestamp() + (float(f"0.{fraction[1:]}") if fraction else 0.0)

    return [moment(text, match) for text, match in zip(texts, parts, strict=True)]


def distinct(values: Sequence[Any]) -> tuple[list[str], Array]:
    """The different texts of values, and the place of each; None and NaN have place -1.

    Example:
        >>> texts, codes = distinct(["b", None, "a", "b"])
        >>> texts, codes.tolist()
        (['b', 'a'], [0, -1, 1, 0])
    """
    known: dict[str, int] = {}
    codes = np.empty(len(values), np.int32)
    for row, value in enumerate(values):
        missing = value is None or value != value  # only NaN differs from itself
        codes[row] = -1 if missing else known.setdefault(str(value), len(known))
    return list(known), codes


def from_array(name: str, values: Array, *, written: bool = False) -> Column:
    """A column of a data frame, as a numpy array.

    Example:
        >>> from_array("on", np.array([True, False])).kind, from_array("a", np.arange(2)).kind
        ('boolean', 'number')
    """
    if values.ndim != 1:
        return Column(name, "other")
    kind = values.dtype.kind
    if not written and kind in "buif":
        return Column(name, "boolean" if kind == "b" else "number", values.astype(np.float64))
    if not written and kind == "M":
        seconds = values.astype("datetime64[us]").astype(np.float64) / 1e6
        return Column(name, "date", np.where(np.isnat(values), np.nan, seconds))
    listed = values.tolist()
    if any(isinstance(each, list | tuple | dict | np.ndarray) for each in listed[:100]):
        return Column(name, "other")
    return from_texts(name, *distinct(listed), written=written)


def from_arrow(name: str, values: Any, *, decimal: str = ".", written: bool = False) -> Column:
    """A column of a pyarrow table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return Column(name, "other")
    if pa.types.is_null(kind):
        return Column(name, "empty", np.full(len(values), np.nan))
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not written and (plain or pa.types.is_boolean(kind)):
        if not pa.types.is_floating(kind):  # decimals and truth have no way to NaN
            values = pc.cast(values, pa.float64(), safe=False)
        numbers = values.to_numpy().astype(np.float64, copy=False)
        return Column(name, "number" if plain else "boolean", numbers)
    if not written and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        whole = pc.cast(values, pa.timestamp("us"), safe=False)
        return from_array(name, whole.to_numpy())
    if not written and pa.types.is_time(kind):
        return Column(name, "date", np.full(len(values), np.nan))
    if not pa.types.is_dictionary(kind):
        values = pc.dictionary_encode(values)
    joined = values.unify_dictionaries() if isinstance(values, pa.ChunkedArray) else values
    chunks = joined.chunks if isinstance(joined, pa.ChunkedArray) else [joined]
    texts = [] if not chunks else chunks[0].dictionary.to_pylist()
    codes = [pc.fill_null(each.indices, -1).to_numpy(zero_copy_only=False) for each in chunks]
    coded = np.concatenate([np.empty(0, np.int32), *codes]).astype(np.int32, copy=False)
    gone = np.array([text is None or text != text for text in texts] + [True])
    return from_texts(
        name,
        [str(text) for text in texts],
        np.where(gone[coded], -1, coded),
        decimal=decimal,
        written=written,
    )


def table_of_frame(frame: Any, where: str = "the table") -> Table | None:
    """The columns of a pandas, polars or pyarrow table; None for anything else.

    Example:
        >>> table_of_frame(np.zeros((2, 2))) is None
        True
    """
    kind = type(frame).__module__.split(".")[0]
    if kind == "polars" and hasattr(frame, "collect"):
        frame = frame.collect()
    load: Callable[..., Column]
    if kind == "pyarrow" and hasattr(frame, "column_names"):
        names, load = tuple(frame.column_names), from_arrow
        chosen: Mapping[str, Any] = {name: frame.column(name) for name in names}
        rows = frame.num_rows
    elif kind in ("pandas", "polars") and hasattr(frame, "columns"):
        names, load = tuple(str(name) for name in frame.columns), from_array
        chosen = {str(name): frame[name].to_numpy() for name in frame.columns}
        rows = len(frame)
    else:
        return None

    def column(name: str, written: bool) -> Column:
        return load(name, chosen[name], written=written)

    twice = sorted({name for name in names if names.count(name) > 1})
    problem = f"{len(twice)} name(s) for several columns ({', '.join(map(repr, twice[:5]))})"
    faults = ((problem, "give every column its own name"),) if twice else ()
    return Table(where, rows, names, column, rows_counted, faults)
