"""Our docstrings say `Example:`, with a doctest; griffe knows the section as `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Lets doctests be shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Name the section as griffe does."""
        if obj.docstring is not None:
            value = obj.docstring.value
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", value, flags=re.M)
