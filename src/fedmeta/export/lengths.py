"""`len(x)` while a network is traced: the number of samples stays open.

Python turns what `len` returns into a plain number, so that a graph would take as many samples as
it was traced with. While an export traces, the modules that a network's layers are written in see a
`len` that asks tensors for their shape.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def open_lengths(network: nn.Module) -> Iterator[None]:
    """Let `len` of a tensor be its first axis, a symbol, in the code of a network's layers.

    Args:
        network: its layers say which modules; those of PyTorch are left alone.
    """
    names = {type(layer).__module__ for layer in network.modules()}
    places = [
        vars(sys.modules[name])
        for name in names
        if name in sys.modules and name.split(".")[0] != "torch"
    ]
    places = [place for place in places if "len" not in place]  # who has one of their own keeps it
    for place in places:
        place["len"] = _length
    try:
        yield
    finally:
        for place in places:
            del place["len"]


def _length(found: Any) -> Any:
    return found.shape[0] if isinstance(found, Tensor) else builtins.len(found)
