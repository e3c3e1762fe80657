"""Who is counted in a round: a seeded fraction of the nodes, less the uploads that get lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmeta.core import randomness
from fedmeta.core.errors import require
from fedmeta.core.randomness import Purpose


@dataclass(frozen=True)
class Participation:
    """A share of the nodes is asked each round; of these, some uploads never arrive.

    A node whose upload is lost keeps the state of its last counted round, so a lost upload is the
    same to the sum as a node that was never asked.

    Args:
        fraction: share of the source nodes asked per round, in (0, 1]; at least one node is
            (unless `independent`).
        lost: probability that an upload is lost, in [0, 1).
        independent: ask every node by itself, with the probability `fraction`, instead of a fixed
            number of them; what amplification of privacy by sampling is known for.

    Example:
        >>> Participation(fraction=0.5).counted(4, 1, randomness.key(0)).tolist()
        [0, 3]
    """

    fraction: float = 1.0
    lost: float = 0.0
    independent: bool = False

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction", self.fraction, "a share above 0 and at most 1")
        require(0 <= self.lost < 1, "lost", self.lost, "a probability from 0 to below 1")

    def counted(self, nodes: int, round_number: int, key: Tensor) -> Tensor:
        """Positions of the nodes counted in a round, ascending."""
        asked = torch.arange(nodes)
        if self.fraction == 1 and self.lost == 0:
            return asked
        draw = randomness.fold(key, round_number)
        if self.fraction < 1:
            scores = randomness.uniform(randomness.fold(draw, Purpose.PARTICIPANTS), nodes)
            count = max(1, round(self.fraction * nodes))
            smallest = torch.argsort(scores, stable=True)[:count].sort().values
            asked = asked[scores < self.fraction if self.independent else smallest]
        if self.lost > 0:
            draws = randomness.uniform(randomness.fold(draw, Purpose.LOST_UPLOADS), nodes)
            asked = asked[draws[asked] >= self.lost]
        return asked
