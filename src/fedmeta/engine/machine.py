"""Computing as an execution says, and giving torch its own settings back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedmeta.config.execution import Execution
from fedmeta.core import tree
from fedmeta.core.tree import Tree

_SMALL = 2**19  # parameters


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in this thread alone, while the context lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def few_threads(theta: Tree) -> AbstractContextManager[None]:
    """One thread for what a small model takes on a CPU; for others all there are.

    Threads that share out so little wait for each other longer than they compute: many times as
    long where the machine has other work to do.
    """
    on_cpu = all(leaf.device.type == "cpu" for leaf in theta.values())
    return one_thread() if on_cpu and tree.size(theta) <= _SMALL else nullcontext()


@contextmanager
def machine(execution: Execution) -> Iterator[None]:
    """Compute as the execution says, while the context lasts.

    Sets the number of CPU threads, how a GPU rounds the factors of float32 products (torch would
    let convolutions round theirs to 11 bits), and whether sums must have a fixed order. Attention
    is computed from products and a softmax: fused kernels have neither the second derivatives that
    a meta-gradient asks for nor rules for many nodes at once.
    """
    before = torch.get_num_threads()
    rounding = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    ordered = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_num_threads(execution.threads or before)
    rounds = execution.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = rounds
    if execution.deterministic:
        # cuBLAS sums in a fixed order only with a workspace of a fixed size.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Nothing here reads memory that it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.set_num_threads(before)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = rounding
        torch.use_deterministic_algorithms(ordered, warn_only=lenient)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
