"""What can go wrong in ways a person can mend: every error says what happened and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from fedmeta.core.plain_values import is_finite_number
from fedmeta.core.printable import printable

_IN_PYTHON = {
    "--device cpu": 'Execution(device="cpu")',
    "--importance path": 'importance="path"',
    "--path batched": 'Execution(path="batched")',
    "--prior RUN_OR_FILE": "PriorSettings(model=RUN_OR_FILE)",
    "--prior-data FILE": "PriorSettings(data=FILE)",
    "--prior-strength 0.1": "PriorSettings(strength=0.1)",
    "--grid or --range": "point",
    "with --seeds": "by train_many",
    "with --precise": "with DataSettings(precise=…)",
    "give --memory": "give Execution a memory of",
    "with --init": "with start=",
    "--init": "start=",
    "--node": "node=",
    "--missing mean": 'missing="mean"',
    "--missing drop": 'missing="drop"',
    "--decimal ,": 'decimal=","',
    "--drop": "drop=",
    "--features": "features=",
    "--label": "label= (of federate: y)",
    "--time": "time=",
    "--task regression": "task='regression'",
    "--loss balanced-cross-entropy": 'loss="balanced-cross-entropy"',
    "--out": "folder",
    "--resume": "resume=True",
    "--rounds": "number of rounds",
}
"""What flags are called in Python, longer ones first."""

_IN_SHELL = {
    "task = 'regression'": "--task regression",
    "task = 'classification'": "--task classification",
}


_LONGEST = 2000  # characters of a message: what it quotes may be of any length
_MOST_NAMES = 100  # that are listed as known


class FedmetaError(Exception):
    """A problem the user can solve, told in one line, in the language of who asked.

    As text it speaks Python; the command line takes `for_shell`.

    Args:
        problem: what went wrong, and where.
        remedy: what to do about it; it may name flags.

    Example:
        >>> error = RunFolderError("run a has not ended", "continue it with --resume")
        >>> print(error)
        run a has not ended: continue it with resume=True
        >>> print(error.for_shell)
        run a has not ended: continue it with --resume
    """

    exit_code = 2

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = _line(problem), _line(remedy)
        super().__init__(f"{self.problem}: {in_python(self.remedy)}")

    @property
    def for_shell(self) -> str:
        """The line for somebody who typed a command."""
        return f"{self.problem}: {_translated(self.remedy, _IN_SHELL)}"


def _line(text: str) -> str:
    """One line that cannot steer a terminal, and that ends before a reader is tired."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def in_python(text: str) -> str:
    """A text that names flags, for somebody who writes Python.

    Example:
        >>> print(in_python("say --missing mean, or --drop 'heat'"))
        say missing="mean", or drop=['heat']
    """
    return _translated(re.sub(r"--drop ('[^']*')", r"drop=[\1]", text), _IN_PYTHON)


def _translated(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text


class SettingError(FedmetaError):
    """A setting, flag or argument with a value that makes no sense."""


class MemoryBudgetError(SettingError):
    """More memory is needed than there may be."""


class DataError(FedmetaError):
    """Data that is missing, damaged, or cannot be partitioned as asked."""


class ModelError(FedmetaError):
    """A model that cannot be trained node by node, or does not fit its data."""


class RunFolderError(FedmetaError):
    """A run folder, checkpoint or model file that is missing, damaged or of another kind."""


class MissingExtraError(FedmetaError):
    """An optional dependency that the asked-for work needs."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed", f"pip install 'fedmeta[{extra}]'")


class DivergedError(FedmetaError):
    """Training stopped being finite; the last good state is kept."""

    exit_code = 3


class BlockedError(FedmetaError):
    """A candidate that falls too far on an earlier task (`fedmeta gate`)."""

    exit_code = 4


def nearest(word: str, known: Iterable[str]) -> str:
    """The known names, those like `word` first: the tail of an "unknown name" message.

    Example:
        >>> nearest("fedvag", ["fedavg", "reptile"])
        "did you mean 'fedavg'? known: fedavg, reptile"
    """
    names = sorted(known)
    close = get_close_matches(word[:100], names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(name) for name in close)}? " if close else ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{hint}known: {', '.join(names[:_MOST_NAMES])}{more}"


def require(condition: bool, name: str, value: object, wanted: str) -> None:
    """Refuse a setting's value with one line that names it.

    Example:
        >>> require(False, "rounds", -3, "a whole number of at least 1")
        Traceback (most recent call last):
        fedmeta.core.errors.SettingError: rounds is -3: give a whole number of at least 1
    """
    if not condition:
        raise SettingError(f"{name} is {shown(value)}", f"give {wanted}")


def shown(value: object) -> str:
    """A value for a message, cut where it is long.

    Example:
        >>> shown("a" * 1000)[-3:], shown(10**5000)
        ('aa…', 'a whole number of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 512:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits or levels within
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 200 else f"{text[:199]}…"


def require_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least` that 63 bits can hold."""
    fits = isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63
    require(fits, name, value, f"a whole number of at least {least}")


def require_positive(name: str, value: object) -> None:
    """Refuse what is not a finite number greater than 0."""
    fits = is_finite_number(value) and value > 0  # type: ignore[operator]
    require(fits, name, value, "a number greater than 0")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in (known := list(choices)):
        raise SettingError(f"{name} is {shown(value)}", nearest(shown(value).strip("'"), known))
