"""Random streams: one seed gives every step of the drawing a stream of its own."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError

# Numbers, once given, are for ever: changing one changes every federation drawn with it.
_STREAMS = {
    "samples": 1,
    "roles": 2,
    "split": 3,
    "sinusoid": 4,
    "precise": 5,
    "platform": 6,
    "replay": 7,
}
Purpose = Literal["samples", "roles", "split", "sinusoid", "precise", "platform", "replay"]


def stream(seed: int, purpose: Purpose, node: str | None = None) -> np.random.Generator:
    """The generator of one step, or of one node in that step.

    Steps do not share a stream, so that another `support_share` leaves it as it was which samples
    a node holds, and another `target_share` leaves both.

    Args:
        seed: of the whole federation.
        purpose: the step.
        node: name of the node, where each draws for itself, whatever others there are.

    Example:
        >>> stream(0, "roles").integers(100) == stream(0, "roles").integers(100)
        np.True_
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(f"seed is {seed!r}", "give a whole number of at least 0")
    own = [] if node is None else [randomness.name_key(node) % 2**64]
    return np.random.default_rng([int(seed), _STREAMS[purpose], *own])
