"""What theory says of the meta-model that training ends with: data size, adaptation, forgetting.

Every bound is a left side that somebody measured, and a right side as a sum of named terms. All
take θ_ε as given and the samples as drawn anew, as the paper's proofs do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Sources:
    """What the bounds need of the sources and of the model θ_ε that was trained on them.

    Args:
        constants: of the sources, with β for every sample, and of the target where there is one.
        weights: w_i.
        sizes: of the sources' sets.
        epsilon: ε = ‖∇F(θ_ε)‖ of the samples at hand.
    """

    constants: Constants
    weights: Sequence[float]
    sizes: Sequence[Sizes]
    epsilon: float

    def __post_init__(self) -> None:
        count = len(self.constants.nodes)
        check_positive("weights", self.weights, count)
        check_positive("sizes", [size.support for size in self.sizes], count)

    def rows(self) -> Iterator[tuple[NodeConstants, float, Sizes]]:
        """Constants, weight and sizes of every source."""
        return zip(self.constants.nodes, self.weights, self.sizes, strict=True)


def data_size(sources: Sources, left: float, printed: bool = False) -> Bound:
    """How far few samples leave the expected meta-gradient from zero (Corollary 1).

        printed:  E‖Σw∇L(φ) + λ∇D_h‖ ≤ ε + Σ wσᵍ(αμ/√Dˢ + 1/√D^q)
        derived:  E‖Σw(I − α∇²L)∇L(φ) + λ∇D_h‖
                       ≤ ε + Σ w(1 + αμ)σᵍ(αμ/√Dˢ + 1/√D^q) + Σ wαβσʰ/√Dˢ

    The printed left side lacks the factor (I − α∇²L) of the meta-gradient. With it, the difference
    of the expected and the empirical one is (I − α∇²L)(r − r̂) − α(∇²L − ∇²L̂)r̂: the first part
    has the paper's terms times ‖I − α∇²L‖ ≤ 1 + αμ, and ‖r̂‖ ≤ β gives the second.

    Args:
        sources: with constants of expected losses.
        left: the norm on the left, of expected losses: derived, `Problem.gradient_norm` where both
            sets of every node are as many samples as there are.
        printed: as printed, or as derived.
    """
    alpha, few, curved = sources.constants.step_size, 0.0, 0.0
    for node, w, size in sources.rows():
        factor = 1.0 if printed else 1 + alpha * node.smoothness
        few += w * factor * _noise(node, alpha, size)
        curved += times(w, alpha, node.gradient, node.hessian_deviation) / sqrt(size.support)
    terms = {"ε": sources.epsilon, "few samples": few}
    if not printed:
        terms["curvature from few samples"] = curved
    return Bound("data size (Corollary 1)", printed, left, terms)


def adaptation_bound(sources: Sources, target: Sizes, left: float, printed: bool = False) -> Bound:
    """How good the meta-model is for a target m (Theorem 2).

        E‖∇F_m(θ_ε)‖ ≤ ε + αβ_m Σwψʰ + (αμ + 1)²Σwψᵍ + q·Σw(σᵍ_m/√D^q_m + σᵍ_i/√D^q_i)
                         + s·Σw(σᵍ_m/√Dˢ_m + σᵍ_i/√Dˢ_i) + αβ_m Σw(σʰ_m/√Dˢ_m + σʰ_i/√Dˢ_i)

    Derived: q = αμ + 1, s = αμ(αμ + 1), μ the largest of sources and target. Printed: q and s the
    other way round, σ_i also over √D_m, μ of the sources. For ∇F_m − ∇F_i is
    (I − αĤ_i)(r_m − r_i) − α(Ĥ_m − Ĥ_i)r_m, where query sets enter r directly and support sets
    through φ, that is times αμ. F_m has the same λD_h as F.

    Args:
        sources: with gaps ψ, and with constants of the target.
        target: of the target's sets.
        left: ‖∇F_m(θ_ε)‖: `Problem.gradient_norm` of the target alone, with weight 1.
        printed: as printed, or as derived.
    """
    constants = sources.constants
    if constants.target is None:
        raise SettingError(
            "the constants have no target, which Theorem 2 is about",
            "give the target's constants, or its data to the estimates",
        )
    m, alpha = constants.target, constants.step_size
    mu = max(node.smoothness for node in constants.nodes)
    stretch = 1 + alpha * (mu if printed else max(mu, m.smoothness))
    query, support, curved, gap_g, gap_h = 0.0, 0.0, 0.0, 0.0, 0.0
    for node, w, size in sources.rows():
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
        "ε": sources.epsilon,
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
        sources: that B comes from.
        strength: λ > 0.
        printed: as printed, or as derived.
    """

    sources: Sources
    strength: float
    printed: bool = False

    def __post_init__(self) -> None:
        require_positive("the prior's strength λ", self.strength)

    @property
    def pull(self) -> dict[str, float]:
        """The terms of B by name."""
        alpha, gradients, few = self.sources.constants.step_size, 0.0, 0.0
        for node, w, size in self.sources.rows():
            factor = 1.0 if self.printed else 1 + alpha * node.smoothness
            gradients += w * factor * node.gradient
            few += w * factor * _noise(node, alpha, size)
        epsilon = self.sources.epsilon
        return {"ε": epsilon, "gradients of the nodes": gradients, "few samples": few}

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


def _noise(node: NodeConstants, alpha: float, size: Sizes) -> float:
    """σᵍ(αμ/√Dˢ + 1/√D^q): how far ∇L(φ) of the samples is from the expected one."""
    through = alpha * node.smoothness / sqrt(size.support)
    return node.gradient_deviation * (through + 1 / sqrt(size.query))
