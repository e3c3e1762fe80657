"""Numbers as people read them. Units are joined by a no-break space, thousands by a thin one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

NO_VALUE = "–"
_SPACE, _THIN = "\u00a0", "\u202f"
_WORDS = (
    *("no", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, never fewer than its whole part has.

    Example:
        >>> number(0.0041237), number(120.67), number(-2)
        ('0.00412', '121', '−2')
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if value == 0:
        return "0"
    size = abs(value)
    if not 1e-4 <= size < 1e9:
        mantissa, exponent = f"{size:.{digits - 1}e}".split("e")
        text = f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    elif size >= 1000 or size == int(size):
        text = f"{size:,.0f}".replace(",", _THIN)
    else:
        places = max(0, digits - 1 - math.floor(math.log10(size)))
        text = f"{size:.{places}f}"
    return f"−{text}" if value < 0 else text


def tick(value: float, _position: float = 0) -> str:
    """A number on an axis, as short as it can be.

    Example:
        >>> tick(0.50), tick(-2.0), tick(1e-5)
        ('0.5', '−2', '10⁻⁵')
    """
    size = abs(value)
    if size and not 1e-3 <= size < 1e5:
        exponent = math.floor(math.log10(size) + 1e-9)
        mantissa = f"{size / 10**exponent:.3g}"
        power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
        text = power if mantissa == "1" else f"{mantissa}·{power}"
    else:
        text = f"{size:,.6g}".replace(",", _THIN) if size >= 1e4 else f"{size:.6g}"
    return f"−{text}" if value < 0 else text


def metric(value: float | None, name: str) -> str:
    """An accuracy in per cent, or a mean squared error.

    Example:
        >>> metric(0.8912, "accuracy").replace(chr(160), " "), metric(0.41234, "mse")
        ('89.1 %', '0.412')
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return f"{100 * value:.1f}{_SPACE}%" if name == "accuracy" else number(value)


def unit(metric: str, label: Any = None) -> str:
    """What a metric's numbers are in: "" for shares, which have their sign.

    Example:
        >>> unit("mse", "hours"), unit("mse"), unit("accuracy")
        ('hours²', 'label²', '')
    """
    return "" if metric == "accuracy" else f"{label or 'label'}²"


def metric_name(metric: str) -> str:
    """What a metric is called in a sentence."""
    return "accuracy" if metric == "accuracy" else "mean squared error"


def mean_name(metric: str) -> str:
    """The mean of a metric over devices."""
    return "mean accuracy" if metric == "accuracy" else "mean squared error"


def change(value: float | None, name: str) -> str:
    """A difference of two metrics, with its sign; accuracies differ by percentage points.

    Example:
        >>> change(-0.0123, "accuracy").replace(chr(160), " "), change(0.0, "accuracy")
        ('−1.2 points', '±0')
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    text = f"{100 * abs(value):.1f}" if name == "accuracy" else number(abs(value))
    if not any(digit in text for digit in "123456789"):
        return "±0"
    unit = f"{_SPACE}points" if name == "accuracy" else ""
    return f"{'−' if value < 0 else '+'}{text}{unit}"


def estimate(mean: float | None, half: float | None, name: str) -> str:
    """A mean metric with half the width of its interval, if there is one.

    Example:
        >>> estimate(0.8912, 0.0061, "accuracy").replace(chr(160), " ")
        '89.1 ± 0.6 %'
    """
    text = metric(mean, name)
    if mean is None or half is None:
        return text
    if name == "accuracy":
        return text.replace(f"{_SPACE}%", f"{_SPACE}±{_SPACE}{100 * half:.1f}{_SPACE}%")
    return f"{text}{_SPACE}±{_SPACE}{number(half, 2)}"


def size(count: float | None) -> str:
    """Bytes.

    Example:
        >>> size(2355600).replace(chr(160), " ")
        '2.36 MB'
    """
    if count is None:
        return NO_VALUE
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{number(count)}{_SPACE}{unit}"
        count /= 1000
    return f"{number(count)}{_SPACE}TB"


def duration(seconds: float | None) -> str:
    """A time span.

    Example:
        >>> [duration(s).replace(chr(160), " ") for s in (0.0216, 1.08, 200, 7500)]
        ['21.6 ms', '1.08 s', '3 min 20 s', '2 h 5 min']
    """
    if seconds is None:
        return NO_VALUE
    if seconds < 1:
        return f"{number(1000 * seconds)}{_SPACE}ms"
    if seconds < 100:
        return f"{number(seconds)}{_SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_SPACE}min {rest}{_SPACE}s"
    return f"{minutes // 60}{_SPACE}h {minutes % 60}{_SPACE}min"


def date(text: str | None) -> str:
    """A moment, from ISO 8601; what is not a date is given back as it is.

    Example:
        >>> date("2026-11-15T08:46:43+00:00")
        '15 November 2026, 08:46 UTC'
    """
    if text is None:
        return NO_VALUE
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = f" {moment.tzname()}" if moment.tzinfo else ""
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment:%Y, %H:%M}{zone}"


# Not strftime's %B: the page shall not depend on the language of the machine it is made on.
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def word(count: int) -> str:
    """A small whole number in letters."""
    return _WORDS[count] if 0 <= count < len(_WORDS) else number(count)


def counted(count: int, noun: str, *, letters: bool = False) -> str:
    """A noun with how many of it there are.

    Example:
        >>> counted(1, "round"), counted(10, "device", letters=True)
        ('1 round', 'ten devices')
    """
    return f"{word(count) if letters else number(count)} {noun}{'' if count == 1 else 's'}"


def between(values: Sequence[int]) -> str:
    """The range of some whole numbers.

    Example:
        >>> between([12, 10, 18]), between([5, 5])
        ('10 to 18', '5')
    """
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shortened(text: str, most: int) -> str:
    """A name that fits beside a chart; its end stays, since names often differ only there.

    Example:
        >>> shortened("sensor-in-the-north-hall-012", 14)
        'sensor-…ll-012'
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def setting(value: Any) -> str:
    """The value of a setting."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    if isinstance(value, float) and value == int(value) and abs(value) < 1e9:
        return number(value)
    return shortened(str(value), 300)
