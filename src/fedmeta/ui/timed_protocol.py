"""HTTP whose requests have to come within a time: a connection that says nothing is closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_WITHIN = 10.0
"""Seconds for the head of a request."""


class TimedProtocol(H11Protocol):
    """The usual protocol with a time limit for the head of every request."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request may take its time, but not more."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """While a request is answered nobody waits for its head."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        reading = self.cycle is None or self.cycle.response_complete
        if not reading:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEADERS_WITHIN, self.transport.close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
