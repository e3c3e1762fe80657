"""Competitors: one file each, with a function that returns a callable doing one round.

All start from the same weights, hold the same samples and do the same mathematics; what they
return, θ after the round, is compared with ours before anything is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

Theta = dict[str, Tensor]
"""Parameters by name."""

Round = Callable[[], Theta]
"""Does one round, the next with every call, and returns θ after it."""


class Missing(Exception):  # noqa: N818 - it is not an error, only a row that stays empty
    """Why a competitor cannot take part here."""


def library(name: str) -> Any:
    """A peer's package.

    Raises:
        Missing: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise Missing(f"{package} is not installed here (benchmarks/requirements.txt)") from error
