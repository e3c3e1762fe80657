"""A node's samples: as one set, divided anew into support and query set, or a mini-batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.randomness import Purpose


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
    longest, held = len(data.support.mask), union(data)
    support, query = ((part.mask > 0).sum() for part in data)
    places = torch.arange(len(held.mask), device=held.mask.device)
    draws = randomness.uniform(key, len(held.mask))
    order = torch.argsort(torch.where(held.mask > 0, draws, 1.0 + places), stable=True)
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
