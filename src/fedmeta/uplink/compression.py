"""Shorter uploads: 8 bits a number, or only the largest numbers, with nothing lost for good.

What a node could not send it keeps and adds to what it sends next (error feedback), so that

    Σ sent + residual = Σ inputs        after any number of rounds.

Reference: Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient
Compression Schemes, ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from fedmeta.core import randomness, tree
from fedmeta.core.errors import require, require_choice
from fedmeta.core.tree import Tree

_LEVELS = 127  # of a signed byte, on either side of zero
_SCALE = "#scale"  # what the name of a tensor's unit ends in


@dataclass(frozen=True)
class Compression:
    """How an upload is shortened.

    Args:
        method: "none"; "8-bit": every number becomes a multiple −127…127 of its tensor's unit,
            rounded up or down at random so that the mean is right; "top-k": the numbers of largest
            size are sent as they are, with their places.
        keep: share of the numbers that "top-k" sends, in (0, 1].

    Example:
        >>> small = Compression("top-k", keep=0.5)
        >>> wire = small.encoded({"a": torch.tensor([3.0, -1.0, 0.5, 9.0])}, randomness.key(0))
        >>> small.decoded(wire, {"a": torch.zeros(4)})
        {'a': tensor([3., 0., 0., 9.])}
    """

    method: Literal["none", "8-bit", "top-k"] = "none"
    keep: float = 0.05

    def __post_init__(self) -> None:
        require_choice("compression.method", self.method, ("none", "8-bit", "top-k"))
        require(0 < self.keep <= 1, "compression.keep", self.keep, "a share above 0 and at most 1")

    def encoded(self, update: Tree, key: Tensor) -> Tree:
        """What goes over the wire, as named tensors; the key is that of the random rounding."""
        if self.method == "8-bit":
            return _to_bytes(update, key)
        return _largest(update, self.keep) if self.method == "top-k" else update

    def decoded(self, wire: Tree, like: Tree) -> Tree:
        """What the receiver makes of it, with the names, shapes and types of `like`."""
        if self.method == "8-bit":
            return {n: wire[n].to(leaf.dtype) * wire[n + _SCALE] for n, leaf in like.items()}
        return _spread(wire, like) if self.method == "top-k" else wire

    def problem(self, wire: Tree, like: Tree) -> str | None:
        """Why an upload from afar cannot be decoded, or None if it can."""
        some = next(iter(like.values()))
        wanted = self.encoded(tree.zeros_like(like), randomness.key(0).to(some.device))
        for name, leaf in wanted.items():
            found = wire.get(name)
            if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
                return f"{name!r} is missing, or not of the shape and type that was agreed on"
        if unknown := [name for name in wire if name not in wanted]:
            return f"{unknown[0]!r} is unknown"
        if self.method == "top-k":
            places = wire["places"]
            if bool((places < 0).any()) or bool((places >= tree.size(like)).any()):
                return "a number has no place"
        return None

    def sent(self, update: Tree, residual: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """What arrives of update + residual, and the residual that is left."""
        wanted = tree.add(update, residual)
        arrived = self.decoded(self.encoded(wanted, key), wanted)
        return arrived, tree.subtract(wanted, arrived)


def _to_bytes(update: Tree, key: Tensor) -> Tree:
    wire: Tree = {}
    for place, (name, leaf) in enumerate(update.items()):
        largest = leaf.abs().max()
        unit = torch.where(largest > 0, largest / _LEVELS, torch.ones_like(largest))
        draws = randomness.uniform(randomness.fold(key, place), leaf.numel()).reshape(leaf.shape)
        level = torch.floor(leaf / unit + draws.to(leaf.dtype)).clamp(-_LEVELS, _LEVELS)
        wire |= {name: level.to(torch.int8), name + _SCALE: unit}
    return wire


def _largest(update: Tree, keep: float) -> Tree:
    flat = torch.cat([leaf.reshape(-1) for leaf in update.values()])
    places = torch.topk(flat.abs(), ceil(keep * len(flat))).indices
    return {"places": places.to(torch.int32), "values": flat.gather(0, places)}


def _spread(wire: Tree, like: Tree) -> Tree:
    values = wire["values"]
    flat = torch.zeros(tree.size(like), dtype=values.dtype, device=values.device)
    flat = flat.scatter(0, wire["places"].to(torch.int64), values)
    parts = torch.split(flat, [leaf.numel() for leaf in like.values()])
    return {
        n: part.reshape(leaf.shape) for (n, leaf), part in zip(like.items(), parts, strict=True)
    }
