"""The error that every command reports, and text made safe to print."""

from __future__ import annotations

import re

# Control characters, marks that reverse the reading order, halves of characters.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with what would steer a terminal written out.

    Example:
        >>> printable("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


class EdgeError(Exception):
    """A problem that the user can fix, in one line.

    Args:
        problem: what went wrong, and where.
        remedy: what to do about it.

    Example:
        >>> print(EdgeError("there is no file x.onnx", "check the path"))
        there is no file x.onnx: check the path
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(printable(" ".join(f"{problem}: {remedy}".split()))[:2000])
