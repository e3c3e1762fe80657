"""Which nodes train (sources) and which only arrive later (targets)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError, nearest
from fedmeta.data.settings import DataSettings


def choose_targets(
    names: Sequence[str], settings: DataSettings, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """For every node, whether it is a target.

    Args:
        names: of the nodes.
        settings: `targets` names them; without it a random `target_share` of the nodes is
            drawn: at least one of two or more nodes, but never all, and none if it is 0.
        rng: random stream.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> chosen = choose_targets(["a", "b", "c"], DataSettings(targets=["b"]), rng)
        >>> chosen.tolist()
        [False, True, False]
    """
    chosen = np.zeros(len(names), np.bool_)
    if settings.targets:
        numbers = {name: number for number, name in enumerate(names)}
        for name in settings.targets:
            if name not in numbers:
                raise DataError(f"there is no node {name!r} to be a target", nearest(name, numbers))
            chosen[numbers[name]] = True
        if chosen.all():
            raise DataError(
                f"targets names all {len(names)} nodes", "leave at least one to train as source"
            )
    elif settings.target_share > 0 and len(names) > 1:
        count = min(max(1, round(settings.target_share * len(names))), len(names) - 1)
        chosen[rng.choice(len(names), count, replace=False)] = True
    return chosen
