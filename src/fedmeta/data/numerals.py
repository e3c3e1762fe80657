"""Numbers as people and spreadsheets write them: decimal marks, thousands apart, %, currencies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedmeta.data.pool import Array

_SIGNS = "%€$£¥"
_PLAIN_MINUS = str.maketrans("\u2212", "-")  # the sign that typesetters use
_GROUPED = {
    ".": re.compile(r"[+-]?[1-9]\d{0,2}((,\d{3})+|(['’ \u00a0\u2009\u202f]\d{3})+)(\.\d+)?"),
    ",": re.compile(r"[+-]?[1-9]\d{0,2}((\.\d{3})+|(['’ \u00a0\u2009\u202f]\d{3})+)(,\d+)?"),
}
_BETWEEN = {each: re.compile(rf"[^\d+{each}-]") for each in ".,"}
_COMMA = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(\.\d{3})+,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?|[+-]?\d{1,3}(,\d{3})+\.\d+")
_WITH_UNIT = re.compile(
    r"[+-]?\d+(?:[.,]\d+)?\s?([^\W\d_]{1,6}|°[CFK]?|[^\W\d_]{1,3}/[^\W\d_]{1,3})"
)


def numbers_in(texts: Sequence[str], decimal: str) -> Array:
    """The numbers in texts, NaN where there is none.

    Thousands may be apart ("1,037.5", "1 037"), and all may have the same sign such as %, which
    does not change them: those without it are no numbers then.

    Args:
        texts: without blanks around them.
        decimal: the mark between whole and fraction.

    Example:
        >>> numbers_in(["1.037,5", "12"], ",").tolist(), numbers_in(["5 %", "7.5%"], ".").tolist()
        ([1037.5, 12.0], [5.0, 7.5])
    """
    found = np.array([_number(text, decimal) for text in texts])
    if not np.isnan(found).any():
        return found
    bare = [text.translate(_PLAIN_MINUS) for text in texts]
    ends = Counter(each for text in bare for each in {text[0], text[-1]} if each in _SIGNS)
    for sign, count in ends.most_common(1):
        if 2 * count >= len(bare):
            bare = [text.strip(sign).strip() if sign in text else "" for text in bare]
    return np.array([_number(text, decimal) for text in bare])


def _number(text: str, decimal: str) -> float:
    """NaN where it is none."""
    if _GROUPED[decimal].fullmatch(text):
        text = _BETWEEN[decimal].sub("", text)
    if decimal == "," and "." not in text:
        text = text.replace(",", ".")
    try:
        return np.nan if "_" in text else float(text)
    except ValueError:
        return np.nan


def decimal_mark(cells: Sequence[str], delimiter: str) -> str:
    """The decimal mark of a file: a comma where some number has one for sure and none a point.

    "1,037" may be either: it is a fraction unless commas are between values too.

    Example:
        >>> decimal_mark(["0,5", "1.037"], ";"), decimal_mark(["1,037", "12"], ",")
        (',', '.')
    """
    bare = [cell.strip().strip(_SIGNS).strip() for cell in cells]
    commas = [each for each in bare if _COMMA.fullmatch(each)]
    points = [each for each in bare if _POINT.fullmatch(each)]
    if any(not _GROUPED["."].fullmatch(each) for each in commas):
        return "," if all(_GROUPED[","].fullmatch(each) for each in points) else "."
    return "," if commas and not points and delimiter != "," else "."


def have_unit(texts: Sequence[str]) -> bool:
    """Whether texts are numbers with a unit behind them, nearly all with the same one.

    Example:
        >>> have_unit(["5 mm", "7.5 mm"]), have_unit(["12a", "12b"])
        (True, False)
    """
    units = Counter(match[1] for text in texts if (match := _WITH_UNIT.fullmatch(text)))
    return any(10 * count >= 9 * len(texts) for _, count in units.most_common(1))
