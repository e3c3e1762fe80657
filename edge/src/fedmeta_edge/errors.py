"""The error that every command reports."""

from __future__ import annotations


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
        super().__init__(" ".join(f"{problem}: {remedy}".split()))
