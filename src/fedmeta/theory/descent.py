"""Sufficient descent: by how much the augmented Lagrangian must fall, and whether it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.core.errors import SettingError, require_whole
from fedmeta.core.meta_gradient import InverseSchedule
from fedmeta.theory.bounds import Bound
from fedmeta.theory.constants import times
from fedmeta.theory.lagrangian import Moves
from fedmeta.theory.penalties import Setting, platform_coefficient
from fedmeta.theory.theorem_check import TheoremCheck, Verdict, status_of
from fedmeta.theory.trajectory import Measurement
from fedmeta.training.job import Job

_ROUNDING = {"float32": 1e-6, "float64": 1e-12}  # of what 𝓛 is, by what the run computed in


@dataclass(frozen=True)
class Descent:
    """The coefficients of the descent of 𝓛 in one round, one entry per source.

    𝓛^{t+1} − 𝓛ᵗ ≤ −Σ (a_e‖Δθ_i‖² + a_p‖Δθ‖² − b_e‖Δθ_i‖ − b_p‖Δθ‖ − c)
    """

    a_e: tuple[float, ...]
    a_p: tuple[float, ...]
    b_e: tuple[float, ...]
    b_p: tuple[float, ...]
    c: tuple[float, ...]

    def bound(self, moved: Moves) -> float:
        """The right side, the largest change of 𝓛 from one round to the next: negative is a fall.

        Args:
            moved: between round t and round t + 1.
        """
        step, total = moved.platform, 0.0
        for i, square in enumerate(moved.nodes):
            total += self.a_e[i] * square - times(self.b_e[i], square**0.5)
            total += self.a_p[i] * step - times(self.b_p[i], step**0.5) - self.c[i]
        return -total


def descent_coefficients(setting: Setting, deltas: tuple[float, float] = (0.0, 0.0)) -> Descent:
    """The coefficients of `Descent` for one round, as derived.

        a_e = ρ/2 − 4wν                         a_p = ρ/2 − 2w²ν²(4wν/ρ² + 1/ρ) − λμ_r/(2I)
        b_e = e·δ_{t+1}                         b_p = 2wν·e·δ_{t+1}/ρ             e = αwζβ²
        c   = 2(δ_t + δ_{t+1})²e²(4wν/ρ² + 1/ρ) + 2e²δ_{t+1}(δ_t + δ_{t+1})/ρ

    They hold with room to spare: the platform's exact minimisation of its linearised part lowers 𝓛
    by (ρ/2 − λμ_r/2I)‖Δθ‖² per node; a node's step by (ρ/2 − wν)‖Δθ_i‖², less (3wν/2)‖θ_i − θ‖²;
    the dual's step adds ‖Δy‖²/ρ; and ‖θ_i − θ‖ = ‖Δy‖/ρ with ‖Δy‖ ≤ wν‖Δθ‖ + (δ_t + δ_{t+1})e.

    Args:
        setting: of the run.
        deltas: δ_t and δ_{t+1} of the differences; (0, 0) with exact curvature, where b = c = 0.

    Reference: Yue et al., MobiHoc 2021, lemma of sufficient descent.
    """
    constants, (now, then), rows = setting.constants, deltas, []
    nu_of = constants.nu(printed=False)
    nodes = zip(constants.nodes, nu_of, setting.weights, setting.penalties, strict=True)
    for node, nu, w, rho in nodes:
        e = times(constants.step_size, w, node.hessian, node.gradient, node.gradient)
        s, both = w * nu, now + then
        a_p = platform_coefficient(rho, s, setting.pull)
        c = times(2, both, both, e, e, 4 * s / rho**2 + 1 / rho)
        c += times(2, e, e, then, both, 1 / rho)
        rows.append((rho / 2 - 4 * s, a_p, times(e, then), times(2, s, e, then, 1 / rho), c))
    return Descent(*zip(*rows, strict=True))


def lagrangian_changes(measurements: Sequence[Measurement]) -> tuple[float | None, ...]:
    """𝓛^{t+1} − 𝓛ᵗ after every measurement; None where one of the two is not known."""
    found: list[float | None] = [None] * len(measurements)
    for place, (one, following) in enumerate(pairwise(measurements)):
        here, there = one.lagrangian, following.lagrangian
        if one.moved is not None and here is not None and there is not None:
            found[place] = there - here
    return tuple(found)


def descent_bounds(
    algorithm: ADMMFedMeta, setting: Setting, measurements: Sequence[Measurement]
) -> tuple[float | None, ...]:
    """The largest change of 𝓛 after every measurement, as derived; None where theory has none."""
    found: list[float | None] = []
    for one in measurements:
        now, then = (difference_step(algorithm, one.round + later) for later in (0, 1))
        if one.moved is None or now is None or then is None:
            found.append(None)
        else:
            found.append(descent_coefficients(setting, (now, then)).bound(one.moved))
    return tuple(found)


def difference_step(algorithm: ADMMFedMeta, number: int) -> float | None:
    """δ_t of a round; 0 with exact curvature, None if theory knows no such number.

    Example:
        >>> difference_step(ADMMFedMeta(penalty=1.0, curvature="finite-difference"), 10)
        0.005
    """
    schedule = algorithm.difference
    if algorithm.curvature == "exact":
        return 0.0
    if algorithm.curvature == "none" or not isinstance(schedule, InverseSchedule):
        return None
    return float((schedule.growth * number + schedule.offset) ** -schedule.power)


def check_descent(
    job: Job,
    closed_form: bool,
    theorem: TheoremCheck,
    measurements: Sequence[Measurement],
    allowed: Sequence[float | None],
) -> Verdict | None:
    """Whether 𝓛 fell as it must, up to the rounding of the run; None where nothing must.

    Nothing must where ρ is below its bound, or the run is not the theorem's algorithm.
    """
    pairs = zip(lagrangian_changes(measurements), allowed, strict=True)
    slack = [may - did for did, may in pairs if did is not None and may is not None]
    if not slack or not theorem.applies_to_algorithm:
        return None
    size = max(abs(one.lagrangian) for one in measurements if one.lagrangian is not None)
    kept = min(slack) >= -size * _ROUNDING[job.layout.execution.dtype]
    name = "𝓛 falls in every round by Σ(a_e‖Δθ_i‖² + a_p‖Δθ‖²)"
    return Verdict(name, False, status_of(kept, closed_form), min(slack))


def stationarity(setting: Setting, rounds: int, left: float, first: float) -> Bound:
    """min ‖∇F(θᵗ)‖² over rounds 2..T ≤ 2[(Σρ)² + (Σwν)²]·𝓛¹ / [Σa_p·(T − 1)].

    For exact curvature, the linearised platform step and losses that are not negative. Since
    Σρ·(θ^{t+1} − θᵗ) is −∇F(θᵗ) + Σ(y_iᵗ − y_i^{t−1}) with ‖y_iᵗ − y_i^{t−1}‖ ≤ wν‖θᵗ − θ^{t−1}‖,
    ‖∇F(θᵗ)‖ is at most Σρ‖θ^{t+1} − θᵗ‖ + Σwν‖θᵗ − θ^{t−1}‖; the squares of all steps add up to at
    most 𝓛¹/Σa_p, because 𝓛 falls by Σa_p‖Δθ‖² in every round and never below 0.

    Args:
        setting: of the run.
        rounds: T ≥ 2.
        left: the smallest ‖∇F(θᵗ)‖² of rounds 2..T.
        first: 𝓛 of round 1.
    """
    require_whole("rounds", rounds, 2)
    coefficients = descent_coefficients(setting)
    if min(*coefficients.a_e, *coefficients.a_p) <= 0:
        raise SettingError(
            "the penalties are below what the theorem asks, so it bounds no gradient",
            "use those of smallest_penalty, or larger ones",
        )
    nu = setting.constants.nu(printed=False)
    steep = sum(w * each for w, each in zip(setting.weights, nu, strict=True))
    rate = 2 * first / (sum(coefficients.a_p) * (rounds - 1))
    terms = {"steps of the platform": sum(setting.penalties) ** 2 * rate, "duals": steep**2 * rate}
    return Bound("stationarity (Theorem 1)", False, left, terms)
