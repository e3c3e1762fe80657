"""A node's samples: as one set, divided anew into support and query set, or a mini-batch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.randomness import Purpose

Resplit = Literal["none", "random", "classes"]
"""How a node's samples are divided anew: not at all, at random, or with its classes kept."""


class Samples(NamedTuple):
    """Scaled inputs, labels, and a mask that is 1 for a sample and 0 for padding."""

    inputs: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor


class NodeData(NamedTuple):
    """Support and query samples, of one node or with a leading axis of nodes."""

    support: Samples
    query: Samples


def union(data: NodeData) -> Samples:
    """All samples of a node, support first; padding moves to the end.

    There it shifts no row of a real sample, so that mini-batches and dropout masks are those of
    the node without padding.
    """
    joined = Samples(*(torch.cat(parts) for parts in zip(*data, strict=True)))
    order = torch.argsort((joined.mask == 0).to(torch.int8), stable=True)
    return Samples(*(part[order] for part in joined))


def resplit(data: NodeData, key: Tensor) -> NodeData:
    """The same samples in a random order, in sets of the same sizes as before.

    A meta-gradient looks at the support set through the adaptation alone and learns from the query
    set, which wastes half of a few samples. Divided anew in every step, they all serve as both.
    Which sample goes where depends on the key and the node's own samples, not on padding.

    Args:
        data: of one node, padded or not.
        key: of the draw.

    Example:
        >>> one = lambda *rows: Samples(*2 * [torch.tensor(rows)], torch.ones(len(rows)))
        >>> new = resplit(NodeData(one(0, 1, 2), one(3, 4)), randomness.key(1))
        >>> new.support.labels.tolist(), new.query.labels.tolist()
        ([1, 3, 4], [2, 0])
    """
    held = union(data)
    return _divided(data, held, _shuffled(held, key))


def resplit_classes(data: NodeData, key: Tensor) -> NodeData:
    """The same samples in sets of the same sizes, at random but for the classes, which are kept.

    A support set that lacks a class cannot be adapted to it. So every class of which the node has
    two samples or more is in the support set and in the query set, and its share of both is that
    of the sets: of n_c samples about n_c·|Dˢ|/D. A class of one sample is in the support set.
    Where the sets are too small for that, the support set comes first, and in it classes of
    several samples; which of those are left out is drawn. With equally many samples of each class,
    as in episodes, there are exactly as many of each in the support set as before.

    Sorted by class and shuffled within, sample r of a class is at (r + u_c) / n_c with one random
    u_c in [0, 1) per class: those that come first are the support set. The first sample of each
    class comes before all others, the last one after them.

    Labels that are no class numbers (of floating point, or several per sample) have no classes:
    they are divided by `resplit`.

    Args:
        data: of one node, padded or not.
        key: of the draw.

    Example:
        >>> one = lambda *rows: Samples(*2 * [torch.tensor(rows)], torch.ones(len(rows)))
        >>> new = resplit_classes(NodeData(one(0, 0, 0), one(1, 1, 1)), randomness.key(1))
        >>> sorted(new.support.labels.tolist()), sorted(new.query.labels.tolist())
        ([0, 1, 1], [0, 0, 1])
    """
    if data.support.labels.ndim != 1 or data.support.labels.is_floating_point():
        return resplit(data, key)
    held = union(data)
    real, places = held.mask > 0, torch.arange(len(held.mask), device=held.mask.device)
    beyond = torch.iinfo(held.labels.dtype).max
    order = _shuffled(held, key)
    labels = torch.where(real, held.labels, beyond)  # padding is a class of its own, the last one
    order = order[torch.argsort(labels[order], stable=True)]
    labels = labels[order]
    new = torch.cat([torch.ones_like(real[:1]), labels[1:] != labels[:-1]])
    start = torch.where(new, places, 0).cummax(0).values
    ends = torch.where(new.roll(-1), places, len(places) - 1)
    end = ends.flip(0).cummin(0).values.flip(0)
    rank, count = places - start, end - start + 1
    # A class's own number, drawn by where it starts: padding, which is behind, does not move it.
    own = randomness.uniform(randomness.fold(key, Purpose.RESPLIT_CLASSES), len(places))[start]
    turn = torch.where(rank == 0, 0, torch.where(rank == count - 1, 3, 2))
    turn = torch.where(count == 1, 1, turn)
    within = torch.where(turn == 2, (rank + own) / count, own)
    wait = torch.where(real[order], turn + within, 4.0 + places)
    return _divided(data, held, order[torch.argsort(wait, stable=True)])


def redivided(data: NodeData, how: Resplit, key: Tensor) -> NodeData:
    """A node's samples divided anew, or as they are.

    Args:
        data: of one node, padded or not.
        how: "none", "random" (`resplit`) or "classes" (`resplit_classes`).
        key: of the draw.
    """
    if how == "none":
        return data
    return resplit(data, key) if how == "random" else resplit_classes(data, key)


def renamed(data: NodeData, classes: int, key: Tensor) -> NodeData:
    """The same samples with class c called π(c), π a random permutation of 0 … classes − 1.

    Where class numbers are local to a node (`Task.local_labels`), they say nothing: drawn anew,
    they cannot be learned by heart. Support and query set share one π.

    Args:
        data: of one node, padded or not; labels are class numbers.
        classes: how many numbers there are.
        key: of the draw.

    Example:
        >>> one = lambda *rows: Samples(*2 * [torch.tensor(rows)], torch.ones(len(rows)))
        >>> new = renamed(NodeData(one(0, 1, 2), one(2, 2)), 3, randomness.key(1))
        >>> new.support.labels.tolist(), new.query.labels.tolist()
        ([1, 2, 0], [0, 0])
    """
    permutation = torch.argsort(randomness.uniform(key, classes), stable=True)
    return NodeData(*(part._replace(labels=permutation[part.labels]) for part in data))


def _shuffled(held: Samples, key: Tensor) -> Tensor:
    """A random order of the samples, padding last."""
    places = torch.arange(len(held.mask), device=held.mask.device)
    draws = randomness.uniform(key, len(held.mask))
    return torch.argsort(torch.where(held.mask > 0, draws, 1.0 + places), stable=True)


def _divided(data: NodeData, held: Samples, order: Tensor) -> NodeData:
    """All of a node's samples in an order, the first ones as support and the rest as query set."""
    longest = len(data.support.mask)
    support, query = ((part.mask > 0).sum() for part in data)
    places = torch.arange(len(held.mask), device=held.mask.device)
    behind = (support + places[longest:] - longest).clamp(max=len(places) - 1)
    return NodeData(_first(support, held, order[:longest]), _first(query, held, order[behind]))


def _first(count: Tensor, samples: Samples, rows: Tensor) -> Samples:
    """Samples at some rows, of which the first `count` are real."""
    mask = (torch.arange(len(rows), device=rows.device) < count).to(samples.mask.dtype)
    return Samples(samples.inputs[rows], samples.labels[rows], mask)


def mini_batch(samples: Samples, size: int | None, key: Tensor | None, step: int) -> Samples:
    """Random samples without replacement; padding is drawn only where real ones run out.

    Args:
        samples: what to draw from.
        size: how many; None or as many as there are: all, in their order.
        key: of the node; needed where there is anything to draw.
        step: which step the batch is for.
    """
    if size is None or size >= len(samples.mask):
        return samples
    if key is None:
        raise SettingError("mini-batches were asked for without a random key", "pass a key")
    draw = randomness.fold(randomness.fold(key, Purpose.BATCH), step)
    draws = randomness.uniform(draw, len(samples.mask)) + (samples.mask == 0)
    # In the samples' own order: a row's dropout mask goes by its place.
    chosen = torch.argsort(draws, stable=True)[:size].sort().values
    return Samples(*(part[chosen] for part in samples))
