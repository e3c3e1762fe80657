"""A run in another process, seen through its folder: rounds as they come, and how it ended."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmeta.core.errors import FedmetaError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import read_json
from fedmeta.fleet.flower_commands import ProgramError
from fedmeta.fleet.plan import FOLDER, Plan
from fedmeta.fleet.server_app import OUTCOME
from fedmeta.training.callbacks import Callback

_POLL, _SILENCE = 0.5, 60.0  # seconds between reads; without new rounds before Flower is asked


@dataclass
class RunFollower:
    """Follows a run folder that the platform writes.

    Args:
        folder: of the run.
        callbacks: called after every round.
    """

    folder: Path
    callbacks: Sequence[Callback] = ()
    _seen: int = 0
    _started: bool = False

    def __post_init__(self) -> None:
        self._rounds = int(Plan.load(self.folder).table.get("training", {}).get("rounds", 100))
        self._seen = len(RunFolder(self.folder).history())

    def report_new(self) -> bool:
        """Call back for rounds that were added; whether there were any."""
        history = RunFolder(self.folder).history()
        added = history[self._seen :]
        if not self._started and history:
            self._started = True
            for callback in self.callbacks:
                callback.on_start(self._seen + 1, self._rounds)
        for record in added:
            for callback in self.callbacks:
                callback.on_round(record)
        self._seen = max(self._seen, len(history))
        return bool(added)

    def until_end(self, superlink: subprocess.Popen[bytes], is_alive: Callable[[], bool]) -> None:
        """Follow the run to its end.

        Args:
            superlink: that carries it.
            is_alive: asks Flower whether the run still goes on; asked only in long silence.

        Raises:
            FedmetaError: that ended it, as the platform's process said.
        """
        outcome, last = self.folder / FOLDER / OUTCOME, time.monotonic()
        while not outcome.exists():
            if superlink.poll() is not None:
                raise ProgramError("Flower's SuperLink has ended", "go on with --resume")
            if self.report_new():
                last = time.monotonic()
            if time.monotonic() - last > _SILENCE:
                last = time.monotonic()
                if not is_alive() and not outcome.exists():
                    raise ProgramError("the platform's process has ended", "go on with --resume")
            time.sleep(_POLL)
        self.report_new()
        ended = read_json(outcome, "outcome of the run")
        if ended["code"] != 0:
            raise EndedError(ended["problem"], ended["remedy"], ended["code"])


class EndedError(FedmetaError):
    """The error that ended the platform's process."""

    def __init__(self, problem: str, remedy: str, code: int) -> None:
        super().__init__(problem, remedy)
        self.exit_code = code


def is_running(listing: str) -> bool:
    """Whether the newest run in what `flwr list --format json` printed still goes on."""
    runs = json.loads(listing).get("runs", [])
    return bool(runs) and not str(runs[0].get("status", "")).startswith("finished")
