"""Chunks of nodes on a GPU: the next one is copied there while one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedmeta.engine.recording import Recorder


@dataclass(frozen=True)
class CudaMapping:
    """Calls a recorded function for every chunk.

    Args:
        function: of the arguments of a chunk.
    """

    function: Recorder

    def __call__(
        self, arguments: Callable[[Tensor], tuple[Any, ...]], chunks: Sequence[Tensor]
    ) -> Iterator[Any]:
        """What the function returns for every chunk, in order."""
        ahead = arguments(chunks[0])
        for following in (*chunks[1:], None):
            inputs = ahead
            if following is not None:
                ahead = arguments(following)
            yield self.function(*inputs)
