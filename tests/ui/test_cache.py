from __future__ import annotations

import pytest

from fedmeta.core.errors import DataError
from fedmeta.ui.cache import Cache


def test_the_oldest_goes_first() -> None:
    memory = Cache[int](most=2)
    first, second = memory.keep(1), memory.keep(2)
    assert memory.get(first, "it") == 1
    memory.keep(3)
    assert memory.get(first, "it") == 1
    with pytest.raises(DataError, match="it is no longer in memory"):
        memory.get(second, "it")


def test_what_could_not_be_made_is_tried_again() -> None:
    memory = Cache[int](most=2)
    with pytest.raises(ZeroDivisionError):
        memory.get_or_create("a", lambda: 1 // 0)
    assert memory.get_or_create("a", lambda: 1) == 1


def test_names_cannot_be_guessed() -> None:
    memory = Cache[int](most=100)
    tokens = {memory.keep(i) for i in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 20
