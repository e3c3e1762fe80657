"""What may be told of a run while it goes on, add to its numbers, and end it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fedmeta.algorithms.algorithm import PlatformState
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import Record

RoundFunction = Callable[..., Mapping[str, float] | None]
"""A plain function as a callback: `f(record)` or `f(record, state)`, called after every round."""


class StopTraining(Exception):  # noqa: N818  # it is no error
    """Raised by a callback: the run ends, with all that an ended run has.

    It ends after this round, or after the next one where that is being computed already.
    """


class Callback(Protocol):
    """Subclass it and override what is needed.

    `on_round` may take the platform's state as a second argument, may return numbers that are added
    to the record of the round, and may raise `StopTraining`.
    """

    def on_start(self, first_round: int, rounds: int) -> None:
        """Before the first round (`first_round` > 1 when a run is resumed)."""

    def on_round(self, record: Record) -> Mapping[str, float] | None:
        """After every round, with what is logged of it."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """When the run has ended, however it did."""


class Callbacks:
    """Several callbacks as one.

    Args:
        given: objects with some of the methods of `Callback`, or plain functions.

    Example:
        >>> Callbacks([lambda record: {"twice": 2 * record["round"]}]).on_round({"round": 3}, None)
        {'twice': 6}
    """

    def __init__(self, given: Sequence[Callback | RoundFunction]) -> None:
        self._given, self.stopped = list(given), False
        self._rounds = [_on_round(each) for each in given]

    def on_start(self, first_round: int, rounds: int) -> None:
        """Before the first round."""
        self._tell("on_start", first_round, rounds)

    def on_round(self, record: Record, state: PlatformState | None) -> dict[str, float]:
        """After a round; returns the numbers to add to its record, see also `stopped`."""
        added: dict[str, float] = {}
        for call in self._rounds:
            try:
                found = call(record, state)
            except StopTraining:
                self.stopped = True
                continue
            if isinstance(found, Mapping):
                added |= found
        if taken := [name for name in added if name in record]:
            raise SettingError(
                f"a callback adds {taken[0]!r}, which is in the record already", "rename it"
            )
        return added

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """When the run has ended."""
        self._tell("on_end", summary)

    def _tell(self, method: str, *arguments: Any) -> None:
        for each in self._given:
            if (call := getattr(each, method, None)) is not None:
                call(*arguments)


def _on_round(given: Callback | RoundFunction) -> Callable[[Record, PlatformState | None], Any]:
    """What to call after a round, with the state if it takes one."""
    call: Any = getattr(given, "on_round", given if callable(given) else lambda _record: None)
    takes = [
        each
        for each in inspect.signature(call).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
    ]
    both = len(takes) > 1 or any(each.kind == each.VAR_POSITIONAL for each in takes)
    return call if both else lambda record, _state: call(record)
