"""All that is wrong with a table, told in one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.data.columns import Table
from fedmeta.data.pool import Array

_SHOWN = 3  # places of a fault
_MOST = 12  # faults that are spelled out


@dataclass(eq=False)
class Faults:
    """What is wrong with a table, collected before anything is said.

    Args:
        table: which one.

    Example:
        >>> from fedmeta.data.columns import rows_counted
        >>> faults = Faults(Table("t.csv", 9, (), lambda name, written: None, rows_counted))
        >>> faults.add("column 'a' is empty", "drop it")
        >>> faults.add("column 'b' has 2 gaps", "fill them", np.array([1, 4]))
        >>> try:
        ...     faults.check()
        ... except DataError as error:
        ...     print(error.problem)
        ...     print(error.remedy)
        t.csv has 2 faults: (1) column 'a' is empty; (2) column 'b' has 2 gaps (row 2, row 5)
        (1) drop it; (2) fill them
    """

    table: Table
    found: list[tuple[str, str, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found = [(problem, remedy, []) for problem, remedy in self.table.faults]

    def add(self, problem: str, remedy: str, rows: Array | Sequence[int] = ()) -> None:
        """Note a fault, and the rows that have it."""
        self.found.append((problem, remedy, [int(row) for row in rows[:_SHOWN]]))

    def check(self) -> None:
        """Raise them all at once, if there are any."""
        if not self.found:
            return
        asked = sorted({row for _, _, rows in self.found[:_MOST] for row in rows})
        places = dict(zip(asked, self.table.place(asked), strict=True)) if asked else {}
        told = [
            problem + (f" ({', '.join(places[row] for row in rows)})" if rows else "")
            for problem, _, rows in self.found[:_MOST]
        ]
        if len(self.found) > _MOST:
            told.append(f"and {len(self.found) - _MOST} more like these")
        if len(self.found) == 1:
            raise DataError(f"{self.table.where}: {told[0]}", self.found[0][1])
        mended: dict[str, list[str]] = {}
        for number, (_, remedy, _) in enumerate(self.found[:_MOST], start=1):
            mended.setdefault(remedy, []).append(str(number))
        remedies = "; ".join(f"({', '.join(of)}) {remedy}" for remedy, of in mended.items())
        listed = "; ".join(f"({number}) {each}" for number, each in enumerate(told, start=1))
        raise DataError(f"{self.table.where} has {len(self.found)} faults: {listed}", remedies)


def such_as(values: Sequence[str]) -> str:
    """A few values for a message.

    Example:
        >>> such_as(["a", "b", "c", "d"])
        "'a', 'b', 'c', …"
    """
    more = ", …" if len(values) > _SHOWN else ""
    return ", ".join(repr(value) for value in values[:_SHOWN]) + more


def counted(number: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def rows_where(condition: Array) -> Array:
    """The first rows that meet a condition, as many as a message shows."""
    return np.flatnonzero(condition)[:_SHOWN]
