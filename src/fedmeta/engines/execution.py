"""How the work of a round is laid out on a machine: device, path, chunk size, threads.

What is left open is resolved once, before the first round, and stored with the run: a resumed run
must lay out its sums as the run it continues did, or the last bits would differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from fedmeta import tree
from fedmeta.errors import SettingError, require, require_choice, require_positive
from fedmeta.functional import FunctionalModel

Path = Literal["auto", "measure", "batched", "loop"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_GIB = 2**30
_MOST_THREADS = 1024  # OpenMP falls over far beyond what any machine has

_LOOP_PARAMETERS = 500_000  # above, a node's products fill a CPU by themselves


@dataclass(frozen=True)
class Execution:
    """Where and how nodes are computed.

    Args:
        device: "cpu" or "cuda" (or "cuda:1", …).
        dtype: "float32" or "float64".
        path: "batched" computes a chunk of nodes at once (vmap), "loop" one after the other;
            "auto" decides by a fixed rule from device, layers and size; "measure" times both.
        memory: budget for data, node states and working memory, in GiB.
        chunk: nodes computed at once on the batched path; None fits the memory budget.
        threads: CPU threads; None takes torch's number.
    """

    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    path: Path = "auto"
    memory: float = 4.0
    chunk: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, tuple(_DTYPES))
        require_choice("path", self.path, ("auto", "measure", "batched", "loop"))
        require_positive("memory", self.memory)
        for name in ("chunk", "threads"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "a whole number of at least 1")
        many = self.threads is not None and self.threads > _MOST_THREADS
        require(not many, "threads", self.threads, f"at most {_MOST_THREADS}")
        kind, colon, number = self.device.partition(":")
        require_choice("device", kind, ("cpu", "cuda"))
        require(number.isdecimal() or not colon, "device", self.device, "cpu, cuda or cuda:NUMBER")
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
        return int(self.memory * _GIB)


def chosen_path(execution: Execution, model: FunctionalModel) -> Literal["batched", "loop"]:
    """The fixed rule behind path "auto": GPUs batch; CPUs batch small models without convolutions.

    Example:
        >>> from fedmeta.functional import functionalise
        >>> chosen_path(Execution(), functionalise(nn.Linear(64, 10)))
        'batched'
        >>> chosen_path(Execution(), functionalise(nn.Conv2d(1, 8, 3)))
        'loop'
    """
    if any(isinstance(layer, nn.RNNBase) for layer in model.inference.modules()):
        return "loop"  # no batching rule
    if execution.torch_device.type == "cuda":
        return "batched"
    # With weights of its own per node a convolution becomes a grouped one, slow on a CPU.
    small = tree.size(model.theta) <= _LOOP_PARAMETERS
    return "batched" if small and not convolves(model) else "loop"


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
    """How many nodes fit the memory budget at once.

    Args:
        execution: has the budget.
        per_node: working memory of one node, in bytes.
        held: bytes taken by node states and data for the whole run.
        nodes: how many there are.
    """
    room = execution.budget - held
    if room < per_node:
        needed = (held + per_node) / _GIB
        raise SettingError(
            f"the memory budget of {execution.memory:g} GiB does not fit one node: node states "
            f"and data take {held / _GIB:.3g} GiB and one node needs {per_node / _GIB:.3g} GiB",
            f"give --memory {needed * 1.05:.3g} or more",
        )
    fits = int(room // per_node)
    return max(1, min(nodes, execution.chunk or fits, fits))


def with_threads(execution: Execution) -> Execution:
    """The same with the number of threads written down."""
    return replace(execution, threads=execution.threads or torch.get_num_threads())


@contextmanager
def machine(execution: Execution) -> Iterator[None]:
    """Compute as the execution says, and give torch its own settings back afterwards.

    Sets the number of CPU threads, and full float32 on GPUs: torch would let convolutions round
    their inputs to 10 bits there.
    """
    before = torch.get_num_threads()
    rounding = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(execution.threads or before)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = rounding
