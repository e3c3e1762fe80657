"""Classes turned and mirrored: where class numbers are local, a turned character is another one.

A node with five characters sees the same five in every round. Each of them, in one of the eight
positions of a square, drawn anew for every class and round, gives 8⁵ other tasks, and its samples
still belong together. Few-shot learning does this to characters (Santoro et al., Meta-Learning with
Memory-Augmented Neural Networks, ICML 2016, by quarter turns).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedmeta.core import randomness
from fedmeta.core.sample_sets import NodeData


def turned(data: NodeData, classes: int, key: Tensor) -> NodeData:
    """The same samples, all those of a class in one of the eight positions of a square.

    Args:
        data: of one node, padded or not; inputs are square images (n, channels, side, side), labels
            class numbers.
        classes: how many numbers there are.
        key: of the draw, one position per class; support and query set share it.

    Example:
        >>> from fedmeta.core.sample_sets import Samples
        >>> image = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
        >>> one = Samples(image, torch.tensor([0]), torch.ones(1))
        >>> turned(NodeData(one, one), 1, randomness.key(1)).query.inputs.squeeze()
        tensor([[0., 1.],
                [0., 0.]])
    """
    draw = (8 * randomness.uniform(key, classes)).to(torch.int64).clamp(max=7)
    return NodeData(*(part._replace(inputs=_in(part.inputs, draw[part.labels])) for part in data))


def _in(images: Tensor, positions: Tensor) -> Tensor:
    """Images in positions 0 … 7: one look-up for all of them."""
    count, channels, side, _ = images.shape
    pixels = torch.arange(side * side, device=images.device).reshape(side, side)
    both = pixels, pixels.T
    places = torch.stack([turn.rot90(quarter) for turn in both for quarter in range(4)])
    index = places.reshape(8, 1, -1)[positions].expand(count, channels, side * side)
    return images.reshape(count, channels, -1).gather(-1, index).reshape(images.shape)
