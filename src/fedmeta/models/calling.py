"""How a module is called with several inputs: by their names, or with all of them as a mapping."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from fedmeta.core.errors import ModelError
from fedmeta.data.named_inputs import InputParts


@dataclass(frozen=True)
class Calling:
    """The way from a row of numbers to the arguments of a module.

    Args:
        parts: what a row holds.
        by: inputs go by their "names", the only one comes "first", or all in a "mapping".
        also: masks and lengths that the module asks for by name.
    """

    parts: InputParts
    by: Literal["names", "first", "mapping"]
    also: tuple[str, ...] = ()

    def arguments(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """Positional and named arguments for some rows, (n, width)."""
        found = self.parts.split(rows)
        also = {name: found[name] for name in self.also}
        if self.by == "mapping":
            return (found,), also
        inputs = {name: found[name] for name in self.parts.names}
        if self.by == "first":
            return tuple(inputs.values()), also
        return (), {**inputs, **also}


def calling_of(module: nn.Module, parts: InputParts) -> Calling:
    """How a module wants its inputs, as the arguments of its `forward` say.

    An argument by the name of every input: they go by name. One input and other names: it comes
    first. One argument that must be given: a mapping of all, masks and lengths too.

    Example:
        >>> parts, _ = InputParts.of({"x1": [[1.0]], "x2": [[2.0]]})
        >>> calling_of(nn.Bilinear(1, 1, 1), parts)
        Traceback (most recent call last):
        fedmeta.core.errors.ModelError: forward of Bilinear takes (input1, input2), but the \
inputs are x1, x2: give arguments and inputs the same names, or take one mapping
    """
    arguments = inspect.signature(module.forward).parameters.values()
    kinds = inspect.Parameter
    anything = any(each.kind is kinds.VAR_KEYWORD for each in arguments)
    named = [
        each for each in arguments if each.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    names = {each.name for each in named}
    also = tuple(name for name in parts.asked if name in names and name not in parts.names)
    if {*parts.names} <= names:
        return Calling(parts, "names", also)
    positional = [
        each
        for each in arguments
        if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    needed = [each.name for each in positional if each.default is kinds.empty]
    open_ended = any(each.kind is kinds.VAR_POSITIONAL for each in arguments)
    if len(parts.names) == 1 and ({*needed[1:]} <= {*also}) and (positional or open_ended):
        return Calling(parts, "first", also)
    if len([name for name in needed if name not in also]) == 1:
        return Calling(parts, "mapping", also)
    if anything:
        return Calling(parts, "names", also)
    raise ModelError(
        f"forward of {type(module).__name__} takes ({', '.join(each.name for each in named)}), but "
        f"the inputs are {', '.join(parts.names)}",
        "give arguments and inputs the same names, or take one mapping",
    )
