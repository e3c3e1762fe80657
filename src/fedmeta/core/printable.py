"""Text from elsewhere, made safe to print: no terminal escapes, no reversed reading order."""

from __future__ import annotations

import re

# Control characters (all but tab and line end), marks that reverse the reading order, and halves
# of characters, which no terminal can show.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with what would steer a terminal written out.

    Example:
        >>> printable("a\x1b[31mb\u202e, à côté")
        'a\\x1b[31mb\\u202e, à côté'
    """
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
