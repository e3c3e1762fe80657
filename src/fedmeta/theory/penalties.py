"""How large the penalties ρ_i must be for the theorem: three inequalities, printed and derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmeta.theory.constants import Constants, check_positive

_MARGIN = 1e-9  # the inequalities are strict; this much more than the boundary satisfies them


@dataclass(frozen=True)
class Setting:
    """A run as the theorem sees it.

    Args:
        constants: of the sources; ν comes from them.
        weights: w_i, which sum to 1.
        penalties: ρ_i > 0.
        strength: λ of the prior; 0 without one.
        mu_r: smoothness of D_h(·, θ_p): 2 for ‖θ − θ_p‖², 2·max A for Mahalanobis.
    """

    constants: Constants
    weights: Sequence[float]
    penalties: Sequence[float]
    strength: float = 0.0
    mu_r: float = 2.0

    def __post_init__(self) -> None:
        check_positive("weights", self.weights, len(self.constants.nodes))
        check_positive("penalties", self.penalties, len(self.constants.nodes))

    @property
    def pull(self) -> float:
        """p = λμ_r/I, a node's share of the prior's smoothness."""
        return self.strength * self.mu_r / len(self.constants.nodes)


@dataclass(frozen=True)
class Inequality:
    """left > right at one node.

    Args:
        name: which of the three.
        node: its place among the sources.
        printed: with the paper's ν and third inequality, or with those of its proof.
        left, right: the two sides.
        least: the ρ_i at which both sides are equal; every larger one satisfies it.
    """

    name: str
    node: int
    printed: bool
    left: float
    right: float
    least: float

    @property
    def slack(self) -> float:
        """left − right: satisfied if it is positive."""
        return self.left - self.right

    @property
    def satisfied(self) -> bool:
        """Whether left > right."""
        return self.slack > 0


def inequalities(setting: Setting, printed: bool) -> tuple[Inequality, ...]:
    """The inequalities on ρ at every node, as printed or as derived.

        ρ/2 > 4wν             every node's step lowers 𝓛
        a_p > 0               so does the platform's, with
                              a_p = ρ/2 − 2w²ν²(4wν/ρ² + 1/ρ) − λμ_r/(2I)
        ρ > 3wν               𝓛 is bounded below; printed as ρ > 3ν

    Reference: Yue et al., MobiHoc 2021, theorem 1.
    """
    found, pull = [], setting.pull
    nodes = zip(setting.constants.nu(printed), setting.weights, setting.penalties, strict=True)
    for node, (nu, w, rho) in enumerate(nodes):
        a_p = platform_coefficient(rho, w * nu, pull)
        third, name = (nu, "ρ > 3ν") if printed else (w * nu, "ρ > 3wν")
        found += [
            Inequality("ρ/2 > 4wν", node, printed, rho / 2, 4 * w * nu, 8 * w * nu),
            Inequality("a_p > 0", node, printed, a_p, 0.0, _root(w * nu, pull)),
            Inequality(name, node, printed, rho, 3 * third, 3 * third),
        ]
    return tuple(found)


def smallest_penalty(
    constants: Constants,
    weights: Sequence[float],
    strength: float = 0.0,
    mu_r: float = 2.0,
    printed: bool = False,
) -> tuple[float, ...]:
    """The smallest ρ_i that satisfy all `inequalities` (a billionth above the boundary).

    Example:
        >>> from fedmeta.theory.constants import NodeConstants
        >>> constants = Constants((NodeConstants(1.0, 1.0, 0.0),), 1.0, closed_form=True)
        >>> [round(rho, 3) for rho in smallest_penalty(constants, [0.5])]
        [16.0]
    """
    least = [0.0] * len(constants.nodes)
    any_penalties = [1.0] * len(least)
    setting = Setting(constants, weights, any_penalties, strength, mu_r)
    for one in inequalities(setting, printed):
        least[one.node] = max(least[one.node], one.least)
    # With ν = 0 and no prior every positive ρ will do.
    return tuple(max(rho * (1 + _MARGIN), _MARGIN) for rho in least)


def platform_coefficient(rho: float, steepness: float, pull: float) -> float:
    """a_p = ρ/2 − 2s²(4s/ρ² + 1/ρ) − p/2, with s = wν and p = λμ_r/I."""
    return rho / 2 - 2 * steepness**2 * (4 * steepness / rho**2 + 1 / rho) - pull / 2


def _root(steepness: float, pull: float) -> float:
    """The ρ at which a_p = 0: it grows with ρ, so halving an interval finds it."""
    if steepness == 0 or steepness == float("inf"):
        return max(pull, steepness)
    low, high = 0.0, pull + 4 * steepness  # at the upper end a_p ≥ 2s − 2s(1/4 + 1/4) = s > 0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (
            (low, middle) if platform_coefficient(middle, steepness, pull) > 0 else (middle, high)
        )
    return high
