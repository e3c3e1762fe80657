"""How far a run is, shown where a person watches: in a terminal or in a notebook.

A script whose output goes to a file or a pipe stays silent, and so does everything where
$FEDMETA_PROGRESS is "off". Neither bar needs a library: a notebook has IPython anyway.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from fedmeta.config.training import loss_of
from fedmeta.core.run_folder import Record
from fedmeta.training.callbacks import Callback

Progress = bool | Callable[[str], Sequence[Callback]] | None
"""Whether to show a bar (None: where a person watches), or what gives callbacks for a label."""

SETTING = "FEDMETA_PROGRESS"
_EVERY = 0.1  # seconds between two pictures
_CELLS = 24  # of a bar in a terminal


def watched(label: str) -> list[Callback]:
    """A bar for whoever watches; nothing where nobody does.

    Args:
        label: what is trained.
    """
    if os.environ.get(SETTING, "").lower() in ("off", "0", "no", "false"):
        return []
    if _in_notebook():
        return [NotebookBar(label)]
    return [TerminalBar(label)] if sys.stderr.isatty() else []


def asked(label: str, progress: bool | None) -> list[Callback]:
    """The bar that is asked for.

    Args:
        label: what is trained.
        progress: whether to show one; None: where a person watches.
    """
    if progress is None:
        return watched(label)
    if not progress:
        return []
    return [NotebookBar(label) if _in_notebook() else TerminalBar(label)]


def bars(progress: Progress) -> Callable[[str], Sequence[Callback]]:
    """For many trainings: what is called with the label of each, and gives its callbacks."""
    if callable(progress):
        return progress
    return lambda label: asked(label, progress)


def status(record: Record) -> str:
    """The latest numbers of a round, short.

    Example:
        >>> status({"round": 3, "meta_loss": 0.51234, "target": {"0": 0.5, "1": 0.75}})
        'loss 0.5123  adapted 0.75'
    """
    loss = loss_of(record)
    parts = [] if loss is None else [f"loss {loss:.4g}"]
    target = record.get("target") or {"1": None}
    reached = target.get("1", next(iter(target.values())))
    if reached is not None:
        parts.append(f"adapted {reached:.3g}")
    return "  ".join(parts)


def time_left(seconds: float, done: int, rounds: int) -> str:
    """What a run still takes at the rate so far, and that rate.

    Example:
        >>> time_left(10.0, 20, 80), time_left(300.0, 10, 20), time_left(0.0, 0, 5)
        ('30 s left, 2 rounds/s', '5 min left, 30 s/round', '')
    """
    if done == 0 or seconds <= 0:
        return ""
    rest, rate = seconds / done * (rounds - done), done / seconds
    left = f"{rest:.0f} s" if rest < 120 else f"{rest / 60:.0f} min"
    left = left if rest < 7200 else f"{rest / 3600:.1f} h"
    return f"{left} left, {f'{rate:.3g} rounds/s' if rate >= 1 else f'{1 / rate:.3g} s/round'}"


class _Bar(Callback):
    """Keeps count; what it looks like is for the subclass."""

    def __init__(self, label: str) -> None:
        self._label, self._status = label, ""
        self._first = self._rounds = self._done = 0
        self._began = self._shown = 0.0

    def on_start(self, first_round: int, rounds: int) -> None:
        """Put the bar up."""
        self._first, self._rounds, self._done = first_round - 1, rounds, first_round - 1
        self._began, self._shown, self._status = time.monotonic(), 0.0, ""
        self.show()

    def on_round(self, record: Record) -> None:
        """Move it on, unless that was done a moment ago."""
        self._done = record["round"]
        if "target" in record or not self._status:
            self._status = status(record)
        now = time.monotonic()
        if now - self._shown > _EVERY:
            self._shown = now
            self.show()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Leave it as it ended."""
        self.show()

    @property
    def text(self) -> str:
        """What stands beside the bar."""
        seconds = time.monotonic() - self._began
        ahead = self._done < self._rounds
        left = time_left(seconds, self._done - self._first, self._rounds - self._first)
        about = left if ahead else f"{seconds:.1f} s"
        return "  ".join(
            part for part in (f"{self._done}/{self._rounds}", self._status, about) if part
        )

    def show(self) -> None:
        """Draw it."""
        raise NotImplementedError


class TerminalBar(_Bar):
    """One line on standard error that is written over."""

    def show(self) -> None:
        """Draw it over the last one."""
        full = _CELLS * self._done // max(1, self._rounds)
        bar = "━" * full + "╌" * (_CELLS - full)
        print(f"\r\x1b[K{self._label} {bar} {self.text}", end="", file=sys.stderr, flush=True)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The last picture, and a new line."""
        self.show()
        print(file=sys.stderr, flush=True)


class NotebookBar(_Bar):
    """A `<progress>` element that is displayed once and then updated."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self._handle: Any = None

    def on_start(self, first_round: int, rounds: int) -> None:
        """Make room for it in the cell."""
        self._handle = None
        super().on_start(first_round, rounds)

    def show(self) -> None:
        """Draw it where it stands."""
        drawing: Any = importlib.import_module("IPython.display")  # typed in no way we could check
        where = f"value={self._done} max={max(1, self._rounds)}"
        bar = f"{escape(self._label)} <progress {where}></progress> {escape(self.text)}"
        text = f"<code>{bar}</code>"
        if self._handle is None:
            self._handle = drawing.display(drawing.HTML(text), display_id=True)
        else:
            self._handle.update(drawing.HTML(text))


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
