"""Differential privacy of nodes: what anyone can learn of a node from what leaves it is bounded.

The unit is a node with all its samples. A node clips v_i/w_i to the norm C; then

    dp = "local"     the node adds noise of deviation 2zCw_i to v_i: nobody need be trusted. What
                     a node sends says little of which node's data it was made from: two vectors of
                     norm C are up to 2C apart
    dp = "central"   the platform adds noise of deviation zC·max w to Σv_i: it is trusted, and noise
                     is added once instead of once per node. The model says little of whether a node
                     took part at all

ε and δ hold for all rounds together, and are promised under "central" alone: noise is drawn by
`randomness`, whose mixer can be inverted. A platform that knows a few numbers of an upload to be
pure noise (those of inputs that never change) finds the key from them, and with it the rest.

What a node sends besides v_i is dropped, except its weight: how many samples a node holds is taken
as known. Of the scaling statistics nothing is hidden.

Under "central", where each node is drawn by itself with a probability in every round, it helps
that nobody knows who was (amplification by sampling); the platform then divides by the expected Σρ.
Under "local" the platform knows who was drawn.

References: McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language
Models, ICLR 2018. Mironov, Talwar, Zhang: Rényi Differential Privacy of the Sampled Gaussian
Mechanism, 2019. The accountant is that of `dp-accounting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import randomness, tree
from fedmeta.core.errors import (
    MissingExtraError,
    SettingError,
    require,
    require_choice,
    require_positive,
)
from fedmeta.core.run_folder import WITHDRAWN
from fedmeta.core.tree import Tree

_PRECISION = 1e-3  # of the noise multiplier, relative
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)  # of the Rényi divergences looked at


@dataclass(frozen=True)
class Privacy:
    """What is promised to nodes, and how.

    Args:
        dp: "none", "local" (the platform is not trusted) or "central" (it is).
        epsilon: ε over all rounds that the noise is found for; None: as `noise` says. Not for
            "local", under which nothing is promised.
        delta: δ over all rounds; less than one in the number of nodes.
        clip: C, the largest norm of v_i/w_i.
        noise: z, the deviation of the noise in units of what one node can change; None: found for
            ε; 0: clipping alone, which promises nothing.

    Example:
        >>> Privacy("central", noise=0.0).clipped({"a": torch.tensor([3.0, 4.0])}, 1.0)
        {'a': tensor([0.6000, 0.8000])}
    """

    dp: Literal["none", "local", "central"] = "none"
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    noise: float | None = None

    def __post_init__(self) -> None:
        require_choice("privacy.dp", self.dp, ("none", "local", "central"))
        require_positive("privacy.clip", self.clip)
        require(0 < self.delta < 1, "privacy.delta", self.delta, "a probability between 0 and 1")
        if self.epsilon is not None:
            require_positive("privacy.epsilon", self.epsilon)
        if self.noise is not None:
            fits = isfinite(self.noise) and self.noise >= 0
            require(fits, "privacy.noise", self.noise, "a number of at least 0")
        given = [name for name in ("epsilon", "noise") if getattr(self, name) is not None]
        if self.dp == "none" and given:
            raise SettingError(
                f"privacy.{given[0]} is given, but privacy.dp is 'none'",
                'choose dp = "local" or "central"',
            )
        if self.dp != "none" and len(given) != 1:
            found = " and ".join(given) or "neither epsilon nor noise"
            raise SettingError(
                f"privacy.dp is {self.dp!r} with {found}",
                "give the ε that is wanted, or the noise multiplier: one of them",
            )
        if self.dp == "local" and self.epsilon is not None:
            raise SettingError(
                f"an ε of {self.epsilon:g} is wanted, but {WITHDRAWN}",
                "use dp = 'central', or give the noise multiplier to measure what noise costs",
            )

    @property
    def on(self) -> bool:
        """Whether anything is asked for."""
        return self.dp != "none"

    @property
    def deviation(self) -> float:
        """Of the noise, in units of w: zC, or 2zC under "local"."""
        if self.noise is None:
            raise SettingError("the noise is not known yet", "find it with `calibrated`")
        return self.noise * self.clip * (2 if self.dp == "local" else 1)

    def clipped(self, update: Tree, weight: Tensor | float) -> Tree:
        """w · clip(v/w, C): v scaled down to the norm wC where it is longer."""
        norm = tree.squared_norm(update).sqrt()
        bound = weight * torch.full_like(norm, self.clip)
        return tree.scale(torch.where(norm > bound, bound / norm, torch.ones_like(norm)), update)

    def at_node(self, contribution: Contribution, weight: Tensor, key: Tensor) -> Contribution:
        """What a node lets go of: v clipped and, under "local", with noise; no metrics.

        The key is that of the noise; a real node's must be its secret.
        """
        update = self.clipped(contribution.update, weight)
        if self.dp == "local":
            update = noised(update, self.deviation * weight, key)
        return Contribution(update, contribution.weight, {})

    def at_platform(
        self, total: Contribution, largest: Tensor, expected: Tensor, key: Tensor
    ) -> Contribution:
        """What the platform goes on with: under "central" Σv_i with noise, and the expected Σρ_i.

        Args:
            total: the sum over the nodes that were counted.
            largest: max w_i over all nodes.
            expected: Σρ_i over all nodes, times the probability to be drawn.
            key: of the noise, the platform's secret.
        """
        if self.dp != "central":
            return total
        return Contribution(
            noised(total.update, self.deviation * largest, key), expected, total.metrics
        )


def noised(update: Tree, deviation: Tensor | float, key: Tensor) -> Tree:
    """The tree with independent normal noise on every number."""
    return {
        name: leaf
        + deviation
        * randomness.normal(randomness.fold(key, place), leaf.numel())
        .reshape(leaf.shape)
        .to(leaf.dtype)
        for place, (name, leaf) in enumerate(update.items())
    }


class Exposure(NamedTuple):
    """How often a node's data is looked at.

    Args:
        rounds: T.
        chance: probability of each node, by itself, to be drawn in a round; 1 where nodes are drawn
            in any other way, which no amplification is claimed for.
    """

    rounds: int
    chance: float = 1.0


def spent(privacy: Privacy, exposure: Exposure) -> float:
    """ε over all rounds; ∞ where there is no noise.

    Example:
        >>> round(spent(Privacy("central", noise=4.0), Exposure(rounds=100)), 1)
        14.2
    """
    if not privacy.noise or exposure.rounds == 0:
        return 0.0 if privacy.noise else float("inf")
    try:
        import dp_accounting as dp
        from dp_accounting import rdp
    except ImportError:
        raise MissingExtraError("dp-accounting, which counts privacy loss,", "dp") from None
    event: dp.DpEvent = dp.GaussianDpEvent(privacy.noise)
    if privacy.dp == "central" and exposure.chance < 1:
        event = dp.PoissonSampledDpEvent(exposure.chance, event)
    accountant = rdp.RdpAccountant(_ORDERS)
    accountant.compose(event, exposure.rounds)
    return float(accountant.get_epsilon(privacy.delta))


def calibrated(privacy: Privacy, exposure: Exposure) -> Privacy:
    """The same with the smallest noise that keeps ε, within a thousandth.

    Example:
        >>> found = calibrated(Privacy("central", epsilon=8.0), Exposure(rounds=100))
        >>> round(found.noise, 1), spent(found, Exposure(rounds=100)) <= 8
        (6.4, True)
    """
    if privacy.dp == "none" or privacy.epsilon is None:
        return privacy

    def too_little(noise: float) -> bool:
        at = replace(privacy, epsilon=None, noise=noise)
        return spent(at, exposure) > (privacy.epsilon or 0.0)

    high = 1.0
    while too_little(high):
        high *= 2
        require(high < 1e6, "privacy.epsilon", privacy.epsilon, "a larger ε, or fewer rounds")
    low = high / 2
    while not too_little(low) and low > _PRECISION:
        high, low = low, low / 2
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return replace(privacy, epsilon=None, noise=high)
