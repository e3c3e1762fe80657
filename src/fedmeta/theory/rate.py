"""How many rounds to a stationary point: the O(1/ε²) of the theorem, with its constant."""

from __future__ import annotations

from collections.abc import Sequence

from fedmeta.core.errors import SettingError, require_whole
from fedmeta.theory.bounds import Bound
from fedmeta.theory.constants import Constants
from fedmeta.theory.descent import descent_coefficients


def stationarity(
    constants: Constants,
    weights: Sequence[float],
    penalties: Sequence[float],
    rounds: int,
    left: float,
    first: float,
    floor: float = 0.0,
    strength: float = 0.0,
    mu_r: float = 2.0,
) -> Bound:
    """min ‖∇F(θᵗ)‖² over rounds 2..T ≤ 2[(Σρ)² + (Σwν)²]·(𝓛¹ − F_min) / [Σa_p·(T − 1)].

    For exact curvature and the linearised platform step. There Σρ·(θ^{t+1} − θᵗ) is
    −∇F(θᵗ) + Σ(y_iᵗ − y_i^{t−1}) and ‖y_iᵗ − y_i^{t−1}‖ ≤ w_iν_i‖θᵗ − θ^{t−1}‖, so ‖∇F(θᵗ)‖ is at
    most Σρ‖θ^{t+1} − θᵗ‖ + Σwν‖θᵗ − θ^{t−1}‖; the squares of all steps add up to at most
    (𝓛¹ − F_min)/Σa_p, because 𝓛 falls by Σa_p‖Δθ‖² in every round and never below F_min.

    Args:
        constants, weights, penalties, strength, mu_r: see `penalties.inequalities`.
        rounds: T ≥ 2.
        left: the smallest ‖∇F(θᵗ)‖² of rounds 2..T.
        first: 𝓛 of round 1.
        floor: a number that F never falls below; 0 for losses that are not negative.
    """
    require_whole("rounds", rounds, 2)
    coefficients = descent_coefficients(constants, weights, penalties, strength, mu_r)
    if min(*coefficients.a_e, *coefficients.a_p) <= 0:
        raise SettingError(
            "the penalties are below what the theorem asks, so it bounds no gradient",
            "use those of smallest_penalty, or larger ones",
        )
    steep = sum(w * nu for w, nu in zip(weights, constants.nu(printed=False), strict=True))
    rate = 2 * (first - floor) / (sum(coefficients.a_p) * (rounds - 1))
    terms = {"steps of the platform": sum(penalties) ** 2 * rate, "duals": steep**2 * rate}
    return Bound("stationarity (Theorem 1)", False, left, terms)
