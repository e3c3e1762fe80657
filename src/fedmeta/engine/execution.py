"""How the work of a round is laid out on a machine: device, path, chunk size, threads.

What is left open is resolved once, before the first round, and stored with the run: a resumed run
must lay out its sums as the run it continues did, or the last bits would differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import nn

from fedmeta.core import tree
from fedmeta.core.errors import (
    MemoryBudgetError,
    SettingError,
    require,
    require_choice,
    require_positive,
)
from fedmeta.models.functional import FunctionalModel

Path = Literal["auto", "measure", "batched", "loop"]
Precision = Literal["full", "tf32", "bf16"]
States = Literal["auto", "device", "host", "disk"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_GIB = 2**30
_MOST_THREADS = 1024  # OpenMP falls over far beyond what any machine has

_LOOP_PARAMETERS = 500_000  # above, a node's products fill a CPU by themselves
_CPU_MEMORY = 4.0  # default budget in GiB
_GPU_SHARE = 0.7  # default budget as a share of the GPU's memory
_PROCESS = _GIB // 2  # the interpreter and torch's libraries
_CACHE = 384 * 2**20  # working memory of a chunk on a CPU: larger ones wait for main memory


@dataclass(frozen=True)
class Execution:
    """Where and how nodes are computed.

    Args:
        device: "cpu" or "cuda" (or "cuda:1", …).
        dtype: "float32" or "float64".
        path: "batched" computes a chunk of nodes at once (vmap), "loop" one after the other;
            "auto" decides by a fixed rule from device, layers and size; "measure" times both.
        memory: budget for data, node states and working memory on the device, in GiB; None is 4
            on a CPU and 70 % of a GPU's memory.
        chunk: nodes computed at once on the batched path; None fits the memory budget (and on a
            CPU its caches).
        threads: CPU threads; None takes torch's number. On the batched path each computes chunks
            of its own.
        precision: "full" computes products in `dtype`; "tf32" lets a GPU round their factors to
            11 bits; "bf16" computes layers in bfloat16 (8 bits) and everything else in float32.
        deterministic: forbid GPU kernels whose sums have no fixed order.
        states: where nodes keep what they remember: on the "device", in "host" memory from where
            chunks are streamed, or on "disk" in a temporary memory-mapped file; "auto" takes the
            device if they fit half the budget, else the host.
    """

    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    path: Path = "auto"
    memory: float | None = None
    chunk: int | None = None
    threads: int | None = None
    precision: Precision = "full"
    deterministic: bool = False
    states: States = "auto"

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, tuple(_DTYPES))
        require_choice("path", self.path, ("auto", "measure", "batched", "loop"))
        require_choice("precision", self.precision, get_args(Precision))
        require_choice("states", self.states, get_args(States))
        if self.memory is not None:
            require_positive("memory", self.memory)
        if self.precision != "full" and self.dtype != "float32":
            raise SettingError(
                f"precision {self.precision!r} goes with dtype float32, not {self.dtype}",
                'use precision "full" or dtype float32',
            )
        for name in ("chunk", "threads"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "a whole number of at least 1")
        many = self.threads is not None and self.threads > _MOST_THREADS
        require(not many, "threads", self.threads, f"at most {_MOST_THREADS}")
        kind, colon, number = self.device.partition(":")
        require_choice("device", kind, ("cpu", "cuda"))
        numbered = kind == "cuda" and number.isdecimal()
        require(numbered or not colon, "device", self.device, "cpu, cuda or cuda:NUMBER")
        if kind == "cuda" and not torch.cuda.is_available():
            raise SettingError("device is 'cuda' but torch sees no GPU", "use --device cpu")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        return _DTYPES[self.dtype]

    @property
    def torch_device(self) -> torch.device:
        """The device as torch's."""
        return torch.device(self.device)

    @property
    def budget(self) -> int:
        """The memory budget in bytes."""
        return int((self.memory or _default_memory(self)) * _GIB)

    @property
    def streams(self) -> bool:
        """Whether node states are kept away from the device that computes."""
        return self.states == "disk" or (self.states == "host" and self.device != "cpu")

    @property
    def workers(self) -> int:
        """How many threads compute chunks of their own."""
        apart = self.path == "batched" and self.device == "cpu"
        return (self.threads or torch.get_num_threads()) if apart else 1


def chosen_path(execution: Execution, model: FunctionalModel) -> Literal["batched", "loop"]:
    """The fixed rule behind path "auto": batch whatever can be, but large models on a CPU.

    Convolutions are batched at any size: with shared weights they are one large batch, with weights
    of their own the nodes take turns inside the layer.

    Example:
        >>> from fedmeta.models.functional import functionalise
        >>> chosen_path(Execution(), functionalise(nn.Linear(64, 10)))
        'batched'
        >>> chosen_path(Execution(), functionalise(nn.Linear(1000, 1000)))
        'loop'
    """
    if any(isinstance(layer, nn.RNNBase) for layer in model.inference.modules()):
        return "loop"  # no batching rule
    if execution.torch_device.type == "cuda" or convolves(model):
        return "batched"
    return "batched" if tree.size(model.theta) <= _LOOP_PARAMETERS else "loop"


def convolves(model: FunctionalModel) -> bool:
    """Whether the model has convolution layers."""
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.inference.modules())


def node_bytes(
    model: FunctionalModel, sample: torch.Tensor, samples: int, dtype: torch.dtype
) -> int:
    """Working memory of one node on the batched path, in bytes (an estimate from above).

    Args:
        model: the model in use.
        sample: one scaled input with a batch axis of 1.
        samples: padded support and query samples of a node.
        dtype: of the computation.
    """
    numbers = 0

    def count(_: nn.Module, __: object, output: object) -> None:
        nonlocal numbers
        numbers += output.numel() if isinstance(output, torch.Tensor) else 0

    leaves = [layer for layer in model.inference.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    with torch.no_grad():
        model(model.theta, sample)
    for hook in hooks:
        hook.remove()
    # Activations with their gradients and tangents, and a handful of trees (θ_i, r, g, y, v, …).
    activations = 6 * samples * (numbers + sample.numel())
    return int((activations + 12 * tree.size(model.theta)) * dtype.itemsize)


def fitting_chunk(execution: Execution, per_node: int, held: int, nodes: int) -> int:
    """How many nodes are computed at once: as many as fit the memory budget, or a CPU's caches.

    Args:
        execution: has the budget, and how many chunks are computed side by side.
        per_node: working memory of one node, in bytes.
        held: bytes taken by node states and data for the whole run.
        nodes: how many there are.
    """
    on_cpu = execution.device == "cpu"
    taken = held + (_PROCESS if on_cpu else 0)
    room = execution.budget - taken
    if room < per_node:
        raise MemoryBudgetError(
            f"the memory budget of {execution.budget / _GIB:g} GiB does not fit one node: node "
            f"states and data take {taken / _GIB:.3g} GiB and one node needs "
            f"{per_node / _GIB:.3g} GiB",
            f"give --memory {(taken + per_node) / _GIB * 1.05:.3g} or more",
        )
    fits = max(1, room // (per_node * execution.workers))
    if execution.chunk is not None or not on_cpu:
        return int(min(nodes, execution.chunk or fits, fits))
    chunks = -(-nodes // min(nodes, fits, max(1, _CACHE // per_node)))
    if nodes * per_node > _CACHE // 8:  # enough for all threads, in equal shares
        chunks = -(-chunks // execution.workers) * execution.workers
    return max(1, -(-nodes // chunks))


def resolved(execution: Execution, state_bytes: int) -> Execution:
    """The same with threads, memory and the place of node states written down.

    Args:
        execution: its path is resolved already.
        state_bytes: what all nodes remember, in bytes.
    """
    states = execution.states
    if states == "auto":
        roomy = execution.device == "cpu" or state_bytes <= execution.budget / 2
        states = "device" if roomy else "host"
    return replace(
        execution,
        threads=execution.threads or torch.get_num_threads(),
        memory=execution.memory or _default_memory(execution),
        states=states,
    )


def _default_memory(execution: Execution) -> float:
    if execution.torch_device.type == "cpu":
        return _CPU_MEMORY
    total = torch.cuda.get_device_properties(execution.torch_device).total_memory
    return float(round(_GPU_SHARE * total / _GIB, 1))


@contextmanager
def machine(execution: Execution) -> Iterator[None]:
    """Compute as the execution says, and give torch its own settings back afterwards.

    Sets the number of CPU threads, how a GPU rounds the factors of float32 products (torch would
    let convolutions round theirs to 11 bits), and whether sums must have a fixed order.
    """
    before = torch.get_num_threads()
    rounding = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    ordered = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
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
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = rounding
        torch.use_deterministic_algorithms(ordered, warn_only=lenient)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
