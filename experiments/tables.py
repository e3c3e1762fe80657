"""What the tables of the page of results share: Markdown, and numbers for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.statistics import Entry

Row = Sequence[str]

MISSING = "not run yet"


def markdown(heads: Row, rows: Sequence[Row]) -> str:
    """A table; without rows, a line that says so.

    Example:
        >>> print(markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    if not rows:
        return f"*{MISSING}*"
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval_text(mean: float, width: float | None, sign: str = "") -> str:
    """Mean ± half width, where there is one.

    Example:
        >>> interval_text(1.5, 0.25), interval_text(1.5, None, sign="+")
        ('1.50 ± 0.25', '+1.50')
    """
    return f"{mean:{sign}.2f}" + ("" if width is None else f" ± {width:.2f}")


def words(found: Entry | None) -> str | None:
    """Mean ± half width, and how many diverged, for people.

    Example:
        >>> words({"mean": 95.5, "ci95": 0.4, "n": 10, "diverged": 1})
        '95.50 ± 0.40, 1 of 10 diverged'
    """
    if found is None:
        return None
    text = "–" if found["mean"] is None else interval_text(found["mean"], found["ci95"])
    lost = found["diverged"]
    return f"{text}, {lost} of {found['n']} diverged" if lost else text


def shown(entry: Entry | None) -> str:
    """An entry for people."""
    return words(entry) or MISSING


def points(row: Entry | None) -> str:
    """A difference in points, with its interval."""
    if row is None or row["mean"] is None:
        return "–"
    return interval_text(row["mean"], row["ci95"], sign="+")


def leaves(table: Mapping[str, Any], mark: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All tables that have an entry of that name, with the path to each."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            if mark in value:
                yield (name,), value
            else:
                for key, found in leaves(value, mark):
                    yield (name, *key), found
