"""Node after node, in this thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from torch import Tensor

Arguments = Callable[[Tensor], tuple[Any, ...]]


@dataclass(frozen=True)
class LoopMapping:
    """Calls a function for every chunk; nodes that cannot be batched come one by one.

    Args:
        function: of the arguments of a chunk.
    """

    function: Callable[..., Any]

    def __call__(self, arguments: Arguments, chunks: Sequence[Tensor]) -> Iterator[Any]:
        """What the function returns for every chunk, in order."""
        return starmap(self.function, map(arguments, chunks))
