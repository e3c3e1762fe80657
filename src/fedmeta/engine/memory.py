"""When memory runs out: fewer nodes are computed at once."""

from __future__ import annotations

import torch

from fedmeta.core.errors import SettingError


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left."""
    refused = "allocate memory" in str(error)  # how torch's CPU allocator puts it
    return refused or isinstance(error, MemoryError | torch.OutOfMemoryError)


def halved(nodes: int, error: BaseException, device: torch.device) -> int:
    """How many nodes to compute at once where `nodes` were too many.

    Raises:
        SettingError: one was too many.

    Example:
        >>> halved(5, MemoryError(), torch.device("cpu"))
        3
    """
    if nodes == 1:
        raise SettingError(
            f"not even one node fits the memory of {device} "
            f"({(str(error).splitlines() or ['out of memory'])[0]})",
            "use a smaller model or fewer samples per node, or another device",
        ) from error
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return -(-nodes // 2)
