"""What theory says of the meta-model that training ends with: data size, adaptation, forgetting.

Every bound is a left side that somebody measured, and a right side as a sum of named terms. All
take θ_ε as given and the samples as drawn anew, as the paper's proofs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from fedmeta.core.errors import SettingError, require, require_positive
from fedmeta.theory.constants import Constants, NodeConstants, check_positive, times


@dataclass(frozen=True)
class Sizes:
    """How many samples a node's support and query set have: |Dˢ| and |D^q|."""

    support: int
    query: int

    def __post_init__(self) -> None:
        require(self.support >= 1, "the size of a support set", self.support, "at least 1")
        require(self.query >= 1, "the size of a query set", self.query, "at least 1")


@dataclass(frozen=True)
class Bound:
    """left ≤ Σ terms.

    Args:
        name: which bound.
        printed: as the paper prints it, or as its proof gives it.
        left: the measured or estimated left side.
        terms: what the right side is made of, by name.
    """

    name: str
    printed: bool
    left: float
    terms: Mapping[str, float]

    @property
    def right(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def slack(self) -> float:
        """right − left: not negative where the bound is kept."""
        return self.right - self.left


def data_size(
    constants: Constants,
    weights: Sequence[float],
    sizes: Sequence[Sizes],
    left: float,
    epsilon: float,
    printed: bool = False,
) -> Bound:
    """How far few samples leave the expected meta-gradient from zero (Corollary 1).

        printed:  E‖Σw∇L(φ) + λ∇D_h‖ ≤ ε + Σ wσᵍ(αμ/√Dˢ + 1/√D^q)
        derived:  E‖Σw(I − α∇²L)∇L(φ) + λ∇D_h‖
                       ≤ ε + Σ w(1 + αμ)σᵍ(αμ/√Dˢ + 1/√D^q) + Σ wαβσʰ/√Dˢ

    The printed left side lacks the factor (I − α∇²L) of the meta-gradient. With it, the difference
    of the expected and the empirical one is (I − α∇²L)(r − r̂) − α(∇²L − ∇²L̂)r̂: the first part
    has the paper's terms times ‖I − α∇²L‖ ≤ 1 + αμ, and ‖r̂‖ ≤ β gives the second.

    Args:
        constants: of the sources, for expected losses; with β for every sample.
        weights: w_i.
        sizes: of the sources' sets.
        left: the norm on the left, of expected losses: derived, `Problem.gradient_norm` where both
            sets of every node are as many samples as there are.
        epsilon: ‖∇F(θ)‖ of the samples at hand.
        printed: as printed, or as derived.
    """
    _check(constants, weights, sizes)
    alpha, few, curved = constants.step_size, 0.0, 0.0
    for node, w, size in zip(constants.nodes, weights, sizes, strict=True):
        factor = 1.0 if printed else 1 + alpha * node.smoothness
        few += w * factor * _noise(node, alpha, size)
        curved += times(w, alpha, node.gradient, node.hessian_deviation) / sqrt(size.support)
    terms = {"ε": epsilon, "few samples": few}
    if not printed:
        terms["curvature from few samples"] = curved
    return Bound("data size (Corollary 1)", printed, left, terms)


def adaptation_bound(
    constants: Constants,
    weights: Sequence[float],
    sizes: Sequence[Sizes],
    target: Sizes,
    left: float,
    epsilon: float,
    printed: bool = False,
) -> Bound:
    """How good the meta-model is for a target m (Theorem 2).

        E‖∇F_m(θ_ε)‖ ≤ ε + αβ_m Σwψʰ + (αμ + 1)²Σwψᵍ + q·Σw(σᵍ_m/√D^q_m + σᵍ_i/√D^q_i)
                         + s·Σw(σᵍ_m/√Dˢ_m + σᵍ_i/√Dˢ_i) + αβ_m Σw(σʰ_m/√Dˢ_m + σʰ_i/√Dˢ_i)

    Derived: q = αμ + 1, s = αμ(αμ + 1), μ the largest of sources and target. Printed: q and s the
    other way round, σ_i also over √D_m, μ of the sources. For ∇F_m − ∇F_i is
    (I − αĤ_i)(r_m − r_i) − α(Ĥ_m − Ĥ_i)r_m, where query sets enter r directly and support sets
    through φ, that is times αμ. F_m has the same λD_h as F.

    Args:
        constants: of the sources with gaps ψ, and of the target.
        weights: w_i.
        sizes: of the sources' sets.
        target: of the target's sets.
        left: ‖∇F_m(θ_ε)‖: `Problem.gradient_norm` of the target alone, with weight 1.
        epsilon: ‖∇F(θ_ε)‖ over the sources.
        printed: as printed, or as derived.
    """
    _check(constants, weights, sizes)
    if constants.target is None:
        raise SettingError(
            "the constants have no target, which Theorem 2 is about",
            "give the target's constants, or its data to the estimates",
        )
    m, alpha = constants.target, constants.step_size
    mu = max(node.smoothness for node in constants.nodes)
    stretch = 1 + alpha * (mu if printed else max(mu, m.smoothness))
    query, support, curved, gap_g, gap_h = 0.0, 0.0, 0.0, 0.0, 0.0
    for node, w, size in zip(constants.nodes, weights, sizes, strict=True):
        theirs = node if printed else m
        gap_g, gap_h = gap_g + w * node.gradient_gap, gap_h + w * node.hessian_gap
        query += w * theirs.gradient_deviation / sqrt(target.query)
        query += w * node.gradient_deviation / sqrt(size.query)
        support += w * theirs.gradient_deviation / sqrt(target.support)
        support += w * node.gradient_deviation / sqrt(size.support)
        curved += w * theirs.hessian_deviation / sqrt(target.support)
        curved += w * node.hessian_deviation / sqrt(size.support)
    direct, through = stretch, (stretch - 1) * stretch
    if printed:
        direct, through = through, direct
    terms = {
        "ε": epsilon,
        "curvature of other nodes": times(alpha, m.gradient, gap_h),
        "gradients of other nodes": stretch**2 * gap_g,
        "few query samples": direct * query,
        "few support samples": through * support,
        "curvature from few samples": times(alpha, m.gradient, curved),
    }
    return Bound("adaptation (Theorem 2)", printed, left, terms)


@dataclass(frozen=True)
class Forgetting:
    """How far a model trained with a prior may have gone from it.

    With B = ε + Σw(β + αμσᵍ/√Dˢ + σᵍ/√D^q), in the derived form times 1 + αμ under the sum
    (a meta-gradient is (I − α∇²L)r), λ‖∇D_h(θ_ε)‖ ≤ B: the prior's pull balances the nodes'.

    Args:
        pull: the terms of B by name.
        strength: λ > 0.
        printed: as printed, or as derived.
    """

    pull: Mapping[str, float]
    strength: float
    printed: bool

    def __post_init__(self) -> None:
        require_positive("the prior's strength λ", self.strength)

    def divergence(self, left: float, distance: float) -> Bound:
        """D_h(θ_ε, θ_p) ≤ (B/λ)‖θ_ε − θ_p‖, since D_h is convex and zero at θ_p.

        Args:
            left: D_h, without λ.
            distance: ‖θ_ε − θ_p‖.
        """
        terms = {name: value * distance / self.strength for name, value in self.pull.items()}
        return Bound("forgetting: divergence by distance", self.printed, left, terms)

    def strongly_convex(self, left: float, modulus: float) -> Bound:
        """D_h(θ_ε, θ_p) ≤ B²/(Mλ²) if D_h is M-strongly convex; M = 2 for ‖θ − θ_p‖².

        Args:
            left: D_h, without λ.
            modulus: M > 0.
        """
        require_positive("the modulus M of strong convexity", modulus)
        whole = sum(self.pull.values())
        terms = {n: whole * v / (modulus * self.strength**2) for n, v in self.pull.items()}
        return Bound("forgetting: divergence", self.printed, left, terms)

    def prior_gradient(self, left: float, prior_epsilon: float, prior_smoothness: float) -> Bound:
        """‖∇L_p(θ_ε)‖ ≤ ε_p + (μ_p/2λ)B, for ‖θ − θ_p‖².

        Args:
            left: ‖∇L_p(θ_ε)‖ of the earlier task's loss.
            prior_epsilon: ε_p = ‖∇L_p(θ_p)‖.
            prior_smoothness: μ_p of L_p; the paper prints ν_p, give that for the printed form.
        """
        rate = prior_smoothness / (2 * self.strength)
        terms = {"ε_p": prior_epsilon, **{name: rate * v for name, v in self.pull.items()}}
        return Bound("forgetting: gradient of the earlier task", self.printed, left, terms)


def forgetting(
    constants: Constants,
    weights: Sequence[float],
    sizes: Sequence[Sizes],
    strength: float,
    epsilon: float,
    printed: bool = False,
) -> Forgetting:
    """B of the forgetting bounds, see `Forgetting`.

    Args:
        constants: of the sources.
        weights: w_i.
        sizes: of the sources' sets.
        strength: λ > 0.
        epsilon: ‖∇F(θ_ε)‖.
        printed: as printed, or as derived.
    """
    _check(constants, weights, sizes)
    alpha, gradients, few = constants.step_size, 0.0, 0.0
    for node, w, size in zip(constants.nodes, weights, sizes, strict=True):
        factor = 1.0 if printed else 1 + alpha * node.smoothness
        gradients += w * factor * node.gradient
        few += w * factor * _noise(node, alpha, size)
    terms = {"ε": epsilon, "gradients of the nodes": gradients, "few samples": few}
    return Forgetting(terms, strength, printed)


def _noise(node: NodeConstants, alpha: float, size: Sizes) -> float:
    """σᵍ(αμ/√Dˢ + 1/√D^q): how far ∇L(φ) of the samples is from the expected one."""
    through = alpha * node.smoothness / sqrt(size.support)
    return node.gradient_deviation * (through + 1 / sqrt(size.query))


def _check(constants: Constants, weights: Sequence[float], sizes: Sequence[Sizes]) -> None:
    count = len(constants.nodes)
    check_positive("weights", weights, count)
    check_positive("sizes", [size.support for size in sizes], count)
