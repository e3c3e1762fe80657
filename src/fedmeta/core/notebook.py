"""What notebooks show of an object: small HTML tables, with everything escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedmeta.core.errors import FedmetaError


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """A caption and a line per fact.

    Example:
        >>> facts_table("Run", {"rounds": "3"})
        '<table><caption><b>Run</b></caption><tr><th>rounds</th><td>3</td></tr></table>'
    """
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
    )
    return f"<table>{_caption(title)}{lines}</table>"


def rows_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A caption, a line of column names and the rows.

    Example:
        >>> rows_table("Of 2", ["name"], [["a"], ["<b>"]]).count("&lt;b&gt;")
        1
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table>{_caption(title)}<tr>{head}</tr>{body}</table>"


def as_frame(table: object) -> Any:
    """A pandas DataFrame, where there is pandas.

    Args:
        table: lists by column name, or a list of rows by column name.
    """
    try:
        import pandas
    except ImportError:
        raise FedmetaError("pandas is not installed", "pip install pandas") from None
    return pandas.DataFrame(table)


def _caption(title: str) -> str:
    return f"<caption><b>{escape(title)}</b></caption>"
