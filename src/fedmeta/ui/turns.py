"""Heavy work in turns: so many at once, some may wait, more are sent away."""

from __future__ import annotations

import asyncio
from types import TracebackType

from fedmeta.core.errors import FedmetaError


class BusyError(FedmetaError):
    """Too many ask for the same at once."""

    def __init__(self) -> None:
        super().__init__("the page is busy", "try again in a moment")


class Turns:
    """An `async with` that lets a few in.

    Args:
        at_once: how many.
        waiting: how many may wait for their turn.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most = at_once + waiting
        self._there = 0

    async def __aenter__(self) -> None:
        if self._there >= self._most:
            raise BusyError
        self._there += 1
        try:
            await self._free.acquire()
        except BaseException:  # whoever waited has left
            self._there -= 1
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._there -= 1
        self._free.release()
