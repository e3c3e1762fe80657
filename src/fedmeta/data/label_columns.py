"""The columns of a table that are no features: its label, whose samples they are, and when."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmeta.data.column_roles import is_whole
from fedmeta.data.columns import GAPS, Column, Table
from fedmeta.data.encoding import Missing
from fedmeta.data.faults import Faults, counted, rows_where, such_as
from fedmeta.data.pool import Array

_WHOLE = re.compile(r"(0|-?[1-9][0-9]{0,18})(\.0*)?")
_MOST_ALIKE = 3  # groups of texts that are told of
_MANY_CLASSES = 30  # different numbers as labels that look like values


def present(
    table: Table, name: str | None, faults: Faults, missing: Missing, *, numbers: bool = False
) -> Column | None:
    """A label or node column; gaps in it are faults unless their rows are left out."""
    if name is None or name not in table.names:
        return None
    column = table.column(name, written=not numbers)
    if numbers and column.kind not in ("number", "boolean"):
        bad = ~column.gaps if column.kind != "mixed" else np.isnan(column.numbers) & ~column.gaps
        texts = (
            [column.texts[code] for code in np.unique(column.codes[bad])] if column.texts else []
        )
        faults.add(
            f"in label column {name!r} {counted(bad.sum(), 'value')} not a number "
            f"({such_as(texts)})",
            "give numbers, or use task = 'classification'",
            rows_where(bad),
        )
        return column
    if missing != "drop" and column.gaps.any():
        faults.add(
            f"column {name!r} has no value in {counted(column.gaps.sum(), 'row')}",
            "fill it, or leave such rows out: --missing drop",
            rows_where(column.gaps),
        )
    if numbers and np.isinf(column.numbers).any():
        infinite = np.isinf(column.numbers)
        faults.add(
            f"in label column {name!r} {counted(infinite.sum(), 'value')} infinite",
            "mend them",
            rows_where(infinite),
        )
    return column


def check_classes(column: Column, meant: Column, faults: Faults) -> None:
    """Numbers with fractions are values and no classes; texts may be anything.

    Args:
        column: the labels as they are written.
        meant: the same column as what it holds, which knows the decimal mark of the file.
        faults: collects what is wrong.
    """
    if meant.kind != "number":
        return
    nan = np.array([*(text.lower() == "nan" for text in column.texts), False])[column.codes]
    there, numbers = ~meant.gaps, meant.numbers
    bad = nan | np.isinf(numbers) | (there & (numbers != np.round(numbers)))
    if bad.any():
        some = [column.texts[code] for code in np.unique(column.codes[bad])]
        faults.add(
            f"in label column {column.name!r} {counted(bad.sum(), 'value')} not a class "
            f"({such_as(some)})",
            "give whole numbers or texts, or use task = 'regression'",
            rows_where(bad),
        )


def too_little(labels: Column | None, owners: Column | None) -> list[tuple[str, str]]:
    """What nobody could learn from, though it can be read: what, and what to do.

    Args:
        labels: of classes as they are written; None: they are values, or there are none.
        owners: whose sample each one is, if that is known.

    Example:
        >>> column = Column("state", "text", texts=("ok",), codes=np.zeros(9, np.int32))
        >>> too_little(column, None)[0][0]
        "all labels are 'ok'"
    """
    found = []
    if labels is not None:
        there = np.unique(labels.codes[labels.codes >= 0])
        if len(there) == 1:
            remedy = "give at least two classes, or check the label column"
            found.append((f"all labels are {labels.texts[there[0]]!r}", remedy))
    if owners is not None:
        sizes = np.bincount(owners.codes[owners.codes >= 0])
        if sizes.max(initial=0) == 1:
            remedy = "give more data, or check the node column"
            found.append((f"none of the {sizes.sum()} nodes has 2 rows", remedy))
    return found


def like_values(column: Column) -> str | None:
    """What to say of classes that are so many whole numbers that they may be values.

    Args:
        column: the labels as what they hold.

    Example:
        >>> like_values(Column("hours", "number", np.arange(200.0)))
        "label 'hours' has 200 different numbers, each a class: for values use --task regression"
        >>> like_values(Column("digit", "number", np.arange(200.0) % 10)) is None
        True
    """
    if column.kind != "number" or not is_whole(column.numbers):
        return None
    count = len(np.unique(column.numbers[~column.gaps]))
    if count <= _MANY_CLASSES:
        return None
    return (
        f"label {column.name!r} has {count} different numbers, each a class: for values use "
        "--task regression"
    )


def look_alike(column: Column, what: str) -> list[str]:
    """What to say of texts that look like one another, or like a missing value.

    Args:
        column: labels or nodes as they are written.
        what: the texts are.

    Example:
        >>> column = Column("state", "text", texts=("ok", "OK", "N/A"), codes=np.array([0, 1, 2]))
        >>> for each in look_alike(column, "classes"):
        ...     print(each)
        column 'state' has 'OK', 'ok' as different classes: are they the same?
        column 'state' has 'N/A' among its classes: where a value is missing leave the cell blank
    """
    same: dict[str, list[str]] = {}
    for text in sorted(column.texts):
        plain = text.partition(".")[0] if _WHOLE.fullmatch(text) else text.casefold()
        same.setdefault(plain, []).append(text)
    name, groups = repr(column.name), [texts for texts in same.values() if len(texts) > 1]
    told = [
        f"column {name} has {such_as(texts)} as different {what}: are they the same?"
        for texts in groups[:_MOST_ALIKE]
    ]
    if gaps := [text for text in column.texts if text.lower() in GAPS]:
        remedy = "where a value is missing leave the cell blank"
        told.append(f"column {name} has {such_as(gaps)} among its {what}: {remedy}")
    return told


def times_of(table: Table, name: str | None, faults: Faults) -> Array | None:
    """When samples were taken, in any unit that grows."""
    if name is None or name not in table.names:
        return None
    column = table.column(name)
    there = column.kind in ("number", "date")
    bad = ~np.isfinite(column.numbers) if there else np.ones(table.rows, np.bool_)
    if bad.any():
        faults.add(
            f"in time column {name!r} {counted(bad.sum(), 'value')} neither a number nor a date "
            "(2024-12-31 23:59, 31.12.2024, or 12/31/2024 where some day is above 12)",
            "write them so, or leave --time out",
            rows_where(bad),
        )
    return column.numbers


def sorted_texts(column: Column, key: Callable[[str], Any] = str) -> tuple[tuple[str, ...], Array]:
    """The different texts of a column in order, and for every row the place of its own.

    Args:
        column: without gaps; texts that no row has any more are left out.
        key: what they are ordered by.
    """
    used = np.bincount(column.codes, minlength=len(column.texts)) > 0
    order = sorted(np.flatnonzero(used).tolist(), key=lambda place: key(column.texts[place]))
    places = np.zeros(len(used), np.int64)
    places[order] = np.arange(len(order))
    return tuple(column.texts[place] for place in order), places[column.codes]


def classes_of(column: Column) -> tuple[tuple[str, ...], Array]:
    """Names and numbers of classes; where all are whole numbers, class 10 comes after 9.

    Numbers are written "12" or "12.0". Others stay texts ("01" is not "1"), and so do all where
    two ways to write one number meet.
    """
    whole = [int(match[1]) for text in column.texts if (match := _WHOLE.fullmatch(text))]
    if len({*whole}) < len(column.texts) or any(abs(number) >= 2**63 for number in whole):
        return sorted_texts(column)
    names, numbers = sorted_texts(column, lambda text: int(text.partition(".")[0]))
    return tuple(name.partition(".")[0] for name in names), numbers
