"""Differential privacy of nodes: what anyone can learn of a node from what leaves it is bounded.

The unit is a node with all its samples. A node clips v_i/w_i to the norm C; then

    dp = "local"     the node adds noise of deviation 2zCw_i to v_i: nobody need be trusted. What
                     a node sends says little of which node's data it was made from: two vectors of
                     norm C are up to 2C apart
    dp = "central"   the platform adds noise of deviation zC·max w to Σv_i: it is trusted, and noise
                     is added once instead of once per node. The model says little of whether a node
                     took part at all

ε and δ hold for all rounds together. Noise is a discrete Gaussian (`discrete_gaussian`) of secret
random bits (`secret_random`), which no seed determines: a private run cannot be repeated bit for
bit, and one that is resumed goes on with other noise. Everything is in whole multiples of a step g,

    q_i = trunc(clip(v_i/w_i, C) / g)    and    w_i·g·(q_i + n)     under "local"
    q_i = trunc(w_i·clip(v_i/w_i, C) / g)    and    g·(Σq_i + n)    under "central"

so that sums and noise are exact, and what is made of them afterwards (floating-point numbers, an
optimiser's step) can tell nothing more. Cutting off towards zero shortens a vector, so that the
clip bounds q_i as it bounds v_i, and the sensitivity is not raised by the step. The clip itself is
computed in double precision and taken a millionth too short, far more than that can be off by.

What a node sends besides v_i is dropped, except its weight: how many samples a node holds is taken
as known. Of the scaling statistics nothing is hidden.

Under "central", where each node is drawn by itself with a probability in every round, it helps
that nobody knows who was (amplification by sampling); the platform then divides by the expected Σρ.
Under "local" the platform knows who was drawn.

References: McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language
Models, ICLR 2018. Mironov, Talwar, Zhang: Rényi Differential Privacy of the Sampled Gaussian
Mechanism, 2019; that it holds for the discrete one, and for which orders: `discrete_gaussian`. The
accountant is that of `dp-accounting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log2
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import tree
from fedmeta.core.errors import (
    MissingExtraError,
    SettingError,
    require,
    require_choice,
    require_positive,
)
from fedmeta.core.plain_values import is_finite_number
from fedmeta.core.secret_random import SecretRandom
from fedmeta.core.tree import Tree
from fedmeta.uplink.discrete_gaussian import DiscreteGaussian

NOISE = "discrete Gaussian, AES-256 in counter mode keyed by the operating system"
"""How noise is drawn, for the record of a run."""
_PRECISION = 1e-3  # of the noise multiplier, relative
# Of the Rényi divergences looked at. Whole ones: for these the discrete Gaussian is the continuous.
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
_STEPS = 40  # binary digits of the clip, or of the noise where that is larger
_SHORT = 1 - 2.0**-20  # of the bound that vectors are clipped to, for what float64 rounds


@dataclass(frozen=True)
class Privacy:
    """What is promised to nodes, and how. No seed fixes the noise: such a run cannot be repeated.

    Args:
        dp: "none", "local" (the platform is not trusted) or "central" (it is).
        epsilon: ε over all rounds that the noise is found for; None: as `noise` says.
        delta: δ over all rounds; less than one in the number of nodes.
        clip: C, the largest norm of v_i/w_i.
        noise: z, the deviation of the noise in units of what one node can change; None: found for
            ε; 0: clipping alone, which promises nothing.

    Example:
        >>> sent = Contribution({"a": torch.tensor([3.0, 4.0])}, torch.tensor(1.0), {})
        >>> Privacy("local", noise=0.0).at_node(sent, torch.tensor(1.0), torch.zeros(0)).update
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
            fits = is_finite_number(self.noise) and self.noise >= 0
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

    @property
    def step(self) -> float:
        """g, a power of two; in units of w under "local"."""
        return 2.0 ** (floor(log2(self.clip * max(1.0, self.noise or 0.0))) - _STEPS)

    def _shorter(self, exact: Tree, weight: Tensor) -> Tensor:
        """What v, in double precision, is multiplied by: it has at most the norm wC then."""
        norm = tree.squared_norm(exact).sqrt()
        bound = weight * torch.full_like(norm, self.clip * _SHORT)
        return torch.where(norm > bound, bound / norm, torch.ones_like(norm))

    def noise_of_nodes(self, nodes: int, numbers: int, source: SecretRandom) -> Tensor:
        """n for every number that each node sends, (nodes, numbers); (nodes, 0): they add none."""
        if self.dp != "local" or not self.noise:
            return torch.zeros(nodes, 0, dtype=torch.float64)
        gaussian = DiscreteGaussian(self.deviation / self.step)
        drawn = torch.from_numpy(gaussian.draw(nodes * numbers, source))
        return drawn.to(torch.float64).reshape(nodes, numbers)

    def at_node(self, contribution: Contribution, weight: Tensor, noise: Tensor) -> Contribution:
        """What a node lets go of: v clipped and, under "local", with noise; no metrics.

        Args:
            contribution: of the node.
            weight: w.
            noise: n, see `noise_of_nodes`; none is drawn twice, and nobody else may know it.
        """
        exact = {name: leaf.double() for name, leaf in contribution.update.items()}
        unit = weight.double() * self.step if self.dp == "local" else self.step
        steps = self._shorter(exact, weight) / unit  # clip and step in one pass over the numbers
        whole = {name: (leaf * steps).trunc() for name, leaf in exact.items()}
        if self.dp == "central":
            return Contribution(tree.scale(unit, whole), contribution.weight, {})
        if self.noise:
            parts = torch.split(noise, [leaf.numel() for leaf in whole.values()])
            whole = {
                name: leaf + part.reshape(leaf.shape)
                for (name, leaf), part in zip(whole.items(), parts, strict=True)
            }
        sent = {name: (leaf * unit).to(contribution.update[name]) for name, leaf in whole.items()}
        return Contribution(sent, contribution.weight, {})

    def at_platform(
        self, total: Contribution, largest: Tensor, expected: Tensor, source: SecretRandom
    ) -> Contribution:
        """What the platform goes on with: under "central" Σv_i with noise, and the expected Σρ_i.

        Args:
            total: the sum over the nodes that were counted, exact, in double precision.
            largest: max w_i over all nodes.
            expected: Σρ_i over all nodes, times the probability to be drawn.
            source: of the noise, the platform's secret.
        """
        if self.dp != "central":
            return total
        whole = {name: leaf.double() / self.step for name, leaf in total.update.items()}
        if self.noise:
            gaussian = DiscreteGaussian(self.deviation * float(largest) / self.step)
            drawn = torch.from_numpy(gaussian.draw(tree.size(whole), source))
            parts = torch.split(drawn, [leaf.numel() for leaf in whole.values()])
            whole = {
                name: leaf + part.reshape(leaf.shape).to(leaf)
                for (name, leaf), part in zip(whole.items(), parts, strict=True)
            }
        released = {name: (leaf * self.step).to(largest.dtype) for name, leaf in whole.items()}
        return Contribution(released, expected, total.metrics)


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
