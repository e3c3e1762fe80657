"""Tables of rows that are looked up: as plain gathers, so that they can be differentiated twice.

A sum over bags has no second derivative in torch, and sparse gradients cannot be added up among
nodes. Written as a gather and a sum the numbers are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta.core.errors import ModelError


class Bag(nn.EmbeddingBag):
    """An `nn.EmbeddingBag` that gathers rows and joins them; bags are rows of numbers.

    Example:
        >>> given, theirs = torch.tensor([[1, 2], [0, 0]]), nn.EmbeddingBag(3, 2, mode="mean")
        >>> expected = theirs(given)
        >>> plain_lookups(theirs)
        >>> type(theirs).__name__, torch.allclose(theirs(given), expected)
        ('Bag', True)
    """

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """(n, length) of places to (n, width)."""
        if input.ndim != 2 or offsets is not None:
            raise ModelError(
                "an EmbeddingBag is called with offsets, which say where bags begin in one row",
                "give it (samples, places), with padding_idx where a bag is shorter",
            )
        rows = functional.embedding(input, self.weight)
        known = torch.ones_like(input, dtype=torch.bool)
        if self.padding_idx is not None:
            known = input != self.padding_idx
        known = known.unsqueeze(-1)
        if self.mode == "max":
            least = torch.finfo(rows.dtype).min
            largest = rows.masked_fill(~known, least).amax(1)
            return torch.where(known.any(1), largest, torch.zeros_like(largest))
        shares = known.to(rows.dtype)
        if per_sample_weights is not None:
            shares = shares * per_sample_weights.unsqueeze(-1)
        total = (rows * shares).sum(1)
        return total / known.sum(1).clamp(min=1) if self.mode == "mean" else total


def plain_lookups(model: nn.Module) -> None:
    """Make tables of a module differentiable twice, in place; their weights stay what they are.

    Raises:
        ModelError: for a table that shortens its rows as they are looked up.
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            continue
        if layer.max_norm is not None:
            raise ModelError(
                f"layer {name!r} ({type(layer).__name__}) shortens its rows while they are looked "
                "up (max_norm), and a node's pass must leave no trace",
                "leave max_norm out, and shorten what was looked up in forward",
            )
        layer.sparse = False
        if type(layer) is nn.EmbeddingBag:
            layer.__class__ = Bag
