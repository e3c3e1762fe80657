"""How the work of a round is laid out on a machine: device, path, chunk size, threads.

What is left open is resolved once, before the first round, and stored with the run: a resumed run
must lay out its sums as the run it continues did, or the last bits would differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fedmeta.core.errors import SettingError, require, require_choice, require_positive

Path = Literal["auto", "measure", "batched", "loop"]
Precision = Literal["full", "tf32", "bf16"]
States = Literal["auto", "device", "host", "disk"]
Frozen = Literal["auto", "once", "every-pass"]
Derivatives = Literal["auto", "compiled", "closed-form", "autograd"]

GIB = 2**30
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_MOST_THREADS = 1024  # OpenMP falls over far beyond what any machine has
_CPU_MEMORY = 4.0  # default budget in GiB
_GPU_SHARE = 0.7  # default budget as a share of the GPU's memory


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
        frozen: a frozen body of the network is computed "once" per sample, or in "every-pass";
            "auto" takes the first, but where inputs are changed at random in training.
        derivatives: meta-gradients of a perceptron on the batched path of a CPU come in
            "closed-form", which is several times as fast and has other last bits than
            "autograd"; "compiled" also computes them in C where a node's step is linear in one of
            them and nothing looks at single contributions (last bits differ again), by the
            machine's own compiler. "auto" takes what is fastest of what there is.
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
    frozen: Frozen = "auto"
    derivatives: Derivatives = "auto"

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, tuple(_DTYPES))
        require_choice("path", self.path, ("auto", "measure", "batched", "loop"))
        require_choice("precision", self.precision, get_args(Precision))
        require_choice("states", self.states, get_args(States))
        require_choice("frozen", self.frozen, get_args(Frozen))
        require_choice("derivatives", self.derivatives, get_args(Derivatives))
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
        return int((self.memory or self.default_memory) * GIB)

    @property
    def default_memory(self) -> float:
        """The memory budget in GiB where none is given."""
        if self.torch_device.type == "cpu":
            return _CPU_MEMORY
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        return float(round(_GPU_SHARE * total / GIB, 1))

    @property
    def streams(self) -> bool:
        """Whether node states are kept away from the device that computes."""
        return self.states == "disk" or (self.states == "host" and self.device != "cpu")

    @property
    def workers(self) -> int:
        """How many threads compute chunks of their own."""
        apart = self.path == "batched" and self.device == "cpu"
        return (self.threads or torch.get_num_threads()) if apart else 1
