"""LoRA: a frozen network, and beside each of its weights a product of two thin matrices.

    W' = W + (1 / r) · B A,   A ∈ ℝ^{r × n} drawn at random, B ∈ ℝ^{m × r} zero at the start

with W ∈ ℝ^{m × n} a linear layer's weights, or a convolution's with n = inputs × kernel. The
network starts as it was. A and B are what is trained, adapted and sent; W never travels.

Reference: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022 (α = 1 here:
step sizes are the algorithm's). Models that `peft` has adapted need none of this: whatever requires
no gradient is a constant to fedmeta anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedmeta.core.errors import ModelError, require

Module = TypeVar("Module", bound=nn.Module)

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LowRank(nn.Module):
    """A weight with its adapter added."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = len(weight), weight[0].numel()
        # Drawn on the CPU in float32, so that all devices and types start from the same numbers.
        drawn = torch.randn(rank, columns, generator=generator) / columns**0.5
        self.lora_A = nn.Parameter(drawn.to(weight))
        self.lora_B = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """W + B A / r, in the shape of W."""
        change = self.lora_B @ self.lora_A / len(self.lora_A)
        return weight + change.reshape(weight.shape)


def lora(
    model: Module,
    rank: int = 4,
    targets: Collection[str] = ("*",),
    train: Collection[str] = (),
    seed: int = 0,
) -> Module:
    """Freeze a network, in place, and put low-rank adapters into linear layers and convolutions.

    Args:
        model: any network; what was frozen before may get an adapter too.
        rank: r, columns of B and rows of A.
        targets: patterns of the names of layers that get an adapter ("*": any characters).
        train: patterns of the names of layers that stay trainable as a whole, such as a new head;
            they get no adapter.
        seed: of A.

    Example:
        >>> model = lora(nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 2)), 1, train=["2"])
        >>> [(n.split(".")[-1], p.numel()) for n, p in model.named_parameters() if p.requires_grad]
        [('lora_A', 9), ('lora_B', 8), ('weight', 16), ('bias', 2)]

    What a device adapts is chosen by name: `Adaptation(scope=("*lora_*",))` is the adapter,
    `scope="head"` the head, `scope="all"` both.

    Raises:
        ModelError: if a pattern names nothing that it could serve.
    """
    require(isinstance(rank, int) and rank >= 1, "rank", rank, "a whole number of at least 1")
    layers = dict(model.named_modules())
    whole = [name for name in layers if _named(name, train)]
    adapted = [
        name
        for name, layer in layers.items()
        if isinstance(layer, _KINDS) and _named(name, targets)
        if not any(name == each or name.startswith(f"{each}.") for each in whole)
    ]
    for field, patterns, found in (("train", train, layers), ("targets", targets, adapted)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in found):
                raise ModelError(
                    f"lora: {pattern!r} of {field} names no layer that it could serve",
                    "adapters go into linear layers and convolutions; names are those of "
                    "model.named_modules()",
                )
    model.requires_grad_(False)
    for name in whole:
        layers[name].requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    for name in adapted:
        layer = layers[name]
        adapter = LowRank(layer.weight, rank, generator)
        parametrize.register_parametrization(layer, "weight", adapter)
    return model


def _named(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
