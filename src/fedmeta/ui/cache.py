"""What the page keeps in memory: the newest few of each kind, never anything on disk."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from fedmeta.core.errors import DataError

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """A few values; the one that was not asked for longest goes first.

    Args:
        most: how many are kept.

    Example:
        >>> squares = Cache[int](most=2)
        >>> [squares.get_or_create(n, lambda n=n: n * n) for n in (2, 3, 2)]
        [4, 9, 4]
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: dict[Hashable, Value] = {}

    def get_or_create(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key; what is made twice at the same time is made once."""
        with self._lock:
            value = self._values.pop(key) if key in self._values else make()
            self._store(key, value)
        return value

    def keep(self, value: Value, token: str | None = None) -> str:
        """Keep a value under a name, which is returned; None: a new one that cannot be guessed."""
        token = secrets.token_urlsafe(16) if token is None else token
        with self._lock:
            self._store(token, value)
        return token

    def get(self, token: object, what: str) -> Value:
        """The value of a name that `keep` gave; an error says `what` it stood for."""
        with self._lock:
            if not isinstance(token, str) or token not in self._values:
                raise DataError(f"{what} is no longer in memory", "do the last step again")
            value = self._values.pop(token)
            self._store(token, value)
        return value

    def _store(self, key: Hashable, value: Value) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            del self._values[next(iter(self._values))]
