"""The constants that the theory speaks of, and the smoothness ν of the meta-objective from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from fedmeta.core.errors import require, require_positive


@dataclass(frozen=True)
class NodeConstants:
    """What bounds the loss L_i of one node, for its support and its query set alike.

    All are ≥ 0 and may be infinite (the gradient of ridge regression is unbounded).

    Args:
        smoothness: μ, Lipschitz constant of ∇L: loss / parameter².
        gradient: β ≥ ‖∇L‖: loss / parameter.
        hessian: ζ, Lipschitz constant of ∇²L: loss / parameter³.
        gradient_deviation: σᵍ = (E‖∇ℓ − ∇L‖²)^½ over single samples ℓ.
        hessian_deviation: σʰ = (E‖∇²ℓ − ∇²L‖²)^½. In the Frobenius norm the mean of D samples is
            off by at most σʰ/√D in expectation; in the spectral norm that needs a further factor.
        gradient_gap: ψᵍ ≥ ‖∇L_m − ∇L_i‖, to the target m.
        hessian_gap: ψʰ ≥ ‖∇²L_m − ∇²L_i‖, to the target m.

    Example:
        >>> NodeConstants(smoothness=2.0, gradient=1.0, hessian=0.5).nu(0.5)
        8.25

    Reference: Yue et al., MobiHoc 2021, assumptions 1-5.
    """

    smoothness: float
    gradient: float
    hessian: float
    gradient_deviation: float = 0.0
    hessian_deviation: float = 0.0
    gradient_gap: float = 0.0
    hessian_gap: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require(value >= 0, f"the constant {field.name}", value, "a number of at least 0")

    def nu(self, alpha: float, printed: bool = False) -> float:
        """ν = μ(1 + αμ)² + αβζ as the proof gives it; printed: (1 + αμ)(1 + μ)μ + αβζ.

        G = (I − αH)r with r = ∇L(φ): H changes by ζ and r is at most β; r changes by μ times what
        φ does, φ by (1 + αμ), and ‖I − αH‖ ≤ 1 + αμ once more.
        """
        mu, stretch = self.smoothness, 1 + alpha * self.smoothness
        smooth = stretch * (1 + mu) * mu if printed else mu * stretch**2
        return smooth + times(alpha, self.gradient, self.hessian)


@dataclass(frozen=True)
class Constants:
    """The constants of all sources of a federation, and of a target where there is one.

    Args:
        nodes: one entry per source, in the order of the weights.
        step_size: α of the adaptation.
        closed_form: whether they are proven for every θ; estimates from data are lower bounds.
        target: the constants of the target m that the gaps ψ are measured to.
    """

    nodes: tuple[NodeConstants, ...]
    step_size: float
    closed_form: bool
    target: NodeConstants | None = None

    def __post_init__(self) -> None:
        require(len(self.nodes) > 0, "the number of nodes with constants", 0, "at least one")
        require_positive("step_size", self.step_size)

    def nu(self, printed: bool) -> tuple[float, ...]:
        """ν_i of every source, as printed or as derived."""
        return tuple(node.nu(self.step_size, printed) for node in self.nodes)


def times(*factors: float) -> float:
    """The product, where 0·∞ = 0: a quadratic has ζ = 0 and no bound β, and still αβζ = 0.

    Example:
        >>> times(0.1, float("inf"), 0.0), times(2.0, 3.0)
        (0.0, 6.0)
    """
    product = 1.0
    for factor in factors:
        product = 0.0 if factor == 0 or product == 0 else product * factor
    return product


def check_positive(name: str, values: Sequence[float], count: int) -> None:
    """Refuse a list that has not one positive number per source.

    Example:
        >>> check_positive("weights", [0.5, 1.0], 2)
    """
    fits = len(values) == count and all(value > 0 for value in values)
    require(fits, name, list(values), f"one positive number for each of {count} nodes")
