"""Which columns of a table are features, where nobody has named them.

An id says who a sample is from, not what was measured: a model that is given one learns its own
devices by heart. So what looks like an id, an index of rows, a date or free text is left out and a
note says so; whoever wants it names all features. The rules, in this order:

- empty: there is no value in it;
- index: whole numbers that grow by 1 from row to row, 20 rows or more, or under a name that pandas
  gives an index;
- id: texts or whole numbers under a name that ends in id, uuid, serial, …, or is device, user, …;
- owner: texts of which every node has one of its own, under whatever name;
- date: for an ordered split there is `time`; also seconds since 1970, or
  thousandths of them and so on, under a name such as time, ts or date;
- texts: more different ones than `max_categories`; of these, unit: numbers with one behind them.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from fedmeta.data.columns import Column
from fedmeta.data.numerals import have_unit

Reason = Literal["empty", "index", "id", "owner", "date", "unit", "texts", "other"]

_LEAST_ROWS = 20
_ID = re.compile(r"(.*[^a-z])?(id|ids|uuid|guid|idx|index|serial|imei|serial[^a-z]?(no|nr|number))")
_OWNERS = (
    *("device", "machine", "node", "client", "user", "patient", "subject", "participant"),
    *("person", "vehicle", "customer", "household", "writer", "speaker", "wearer", "driver"),
    *("engine", "unit", "asset", "robot", "turbine", "equipment"),
    *("gerät", "geraet", "anlage", "maschine", "nutzer", "kunde", "fahrzeug", "proband"),
    *("appareil", "utilisateur", "véhicule", "dispositivo", "máquina", "usuario", "cliente"),
)
_OWNER = re.compile(rf"({'|'.join(_OWNERS)})([^a-z]?(id|name|no|nr|number|key|code))?")


_TIME = re.compile(r"(.*[^a-z])?(ts|time|timestamp|datetime|date|epoch|unix|zeit|zeitstempel)")
_INDEX = re.compile(r"__index_level_\d+__|unnamed: \d+")  # pandas' names for an index of rows
_RECENT = (5e8, 4e9)  # seconds since 1970: years 1985 to 2096
_FEWEST_NODES = 5  # of which a text each makes an id
_FEWEST_OWNERS, _FEWEST_SAMPLES = 8, 5  # of texts that may be owners, whatever they are called


def why_no_feature(
    column: Column, max_categories: int, node: Column | None = None
) -> Reason | None:
    """Why a column is not taken for a feature; None: it is.

    Args:
        column: with all of its rows.
        max_categories: most different texts that get an input each.
        node: the column that says whose sample it is, as it is written.

    Example:
        >>> why_no_feature(Column("", "number", np.arange(50.0)), 50)
        'index'
        >>> why_no_feature(Column("deviceId", "number", np.array([7.0, 7.0])), 50)
        'id'
        >>> why_no_feature(Column("humid", "number", np.array([7.0, 7.0])), 50) is None
        True
        >>> why_no_feature(Column("ts", "number", np.array([1.7e9, 1.7e9 + 3])), 50)
        'date'
    """
    if column.kind in ("empty", "other", "date"):
        kinds: dict[str, Reason] = {"empty": "empty", "other": "other", "date": "date"}
        return kinds[column.kind]
    if is_index(column):
        return "index"
    whole = column.kind == "number" and is_whole(column.numbers)
    if (column.kind == "text" or whole) and names_somebody(column.name):
        return "id"
    if column.kind == "text" and node is not None and renames(column, node):
        return "owner"
    if is_clock(column):
        return "date"
    if column.kind == "text" and len(column.texts) > max_categories:
        return "unit" if have_unit(column.texts) else "texts"
    return None


def names_somebody(name: str) -> bool:
    """Whether a name is that of an id or an owner.

    Example:
        >>> [names_somebody(each) for each in ("unit_id", "user", "humidity", "grid", "wind")]
        [True, True, False, False, False]
    """
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip()
    return bool(_ID.fullmatch(plain) or _OWNER.fullmatch(plain))


def is_clock(column: Column) -> bool:
    """Whether numbers under the name of a time are seconds since 1970, or thousandths of them."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column.name).lower().strip()
    if column.kind != "number" or not _TIME.fullmatch(plain):
        return False
    there = column.numbers[np.isfinite(column.numbers)]
    if len(there) == 0:
        return False
    low, high = there.min(), there.max()
    return any(
        _RECENT[0] <= low / each and high / each <= _RECENT[1] for each in (1, 1e3, 1e6, 1e9)
    )


def is_index(column: Column) -> bool:
    """Whether a column counts the rows of its file."""
    values = column.numbers
    if column.kind == "number" and _INDEX.fullmatch(column.name.strip().lower()):
        return True
    if column.kind != "number" or len(values) < _LEAST_ROWS or values[1] != values[0] + 1:
        return False
    return bool((values[1:] == values[:-1] + 1).all()) and is_whole(values[:1])


def differs_in_every_row(column: Column) -> bool:
    """Whether all of its numbers are whole and no two the same, as those of ids are."""
    values = column.numbers
    if column.kind != "number" or len(values) < _LEAST_ROWS:
        return False
    for some in (values[:1000], values):  # most columns are done with after a few rows
        if not is_whole(some) or len(np.unique(some)) < len(some):
            return False
    return not column.gaps.any()


def renames(column: Column, node: Column) -> bool:
    """Whether every node has a value of its own in a column, the same in all of its rows.

    No new device has one of these values, so that a model can learn nothing from them but its
    devices by heart. Texts and whole numbers alone are looked at.

    Args:
        column: with all of its rows.
        node: the column that says whose sample it is, as it is written.

    Example:
        >>> node = Column("pump", "text", texts=tuple("abcdef"), codes=np.arange(60) // 10)
        >>> serial = Column("serial", "text", texts=tuple("uvwxyz"), codes=5 - node.codes)
        >>> renames(serial, node), renames(serial, node.only(np.arange(20)))
        (True, False)
        >>> renames(Column("age", "number", np.arange(60) // 20 * 1.0), node)
        False
    """
    count = len(node.texts)
    if count < _FEWEST_NODES or len(column.gaps) != len(node.codes) or node.gaps.any():
        return False
    if column.kind == "text":
        values = column.codes.astype(np.float64) if len(column.texts) == count else np.empty(0)
    else:
        values = column.numbers if column.kind == "number" else np.empty(0)
    for some in (slice(1000), slice(None)):  # most columns are done with after a few rows
        part, owners = values[some], node.codes[some]
        if not is_whole(part):
            return False
        own = np.full(count, np.nan)
        own[owners] = part
        if (own[owners] != part).any():
            return False
    return len(np.unique(own)) == count > 0 and len(part) > count


def is_whole(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Whether all numbers that are there are whole."""
    there = values[np.isfinite(values)]
    return len(there) > 0 and bool((there == np.round(there)).all())


def owner_count(column: Column) -> int | None:
    """How many nodes a column would make, where it looks like the one that says whose sample it is.

    Its name does, and its values come again: there are at most half as many as rows. Or it has a
    good many texts, and most of them some rows each, whatever its name is.

    Example:
        >>> texts = tuple(f"P{i}" for i in range(9))
        >>> pumps = Column("Pumpe", "text", texts=texts, codes=np.arange(90) // 10)
        >>> owner_count(pumps)
        9
    """
    if column.kind not in ("text", "number"):
        return None
    named = names_somebody(column.name)
    if column.kind == "text":
        sizes = np.bincount(column.codes[column.codes >= 0], minlength=len(column.texts))
        count = len(column.texts)
        many = count >= _FEWEST_OWNERS and float(np.median(sizes)) >= _FEWEST_SAMPLES
    elif named:
        count, many = len(np.unique(column.numbers[~column.gaps])), True
    else:
        return None
    if not many and not named:
        return None
    return count if 2 <= count <= len(column.gaps) / 2 else None


WORDS: dict[Reason, str] = {
    "empty": "without any value",
    "index": "an index of the rows",
    "id": "an id by its name",
    "owner": "an id, of which every node has its own",
    "date": "dates (for an ordered split name it as time)",
    "unit": "numbers with a unit (without it they would be a feature)",
    "texts": "too many different texts for categories",
    "other": "lists or objects",
}
