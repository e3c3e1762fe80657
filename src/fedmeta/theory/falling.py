"""By how much the augmented Lagrangian fell along a run, against what theory allows."""

from __future__ import annotations

from collections.abc import Sequence

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.core.meta_gradient import InverseSchedule
from fedmeta.theory.constants import Constants
from fedmeta.theory.lagrangian import descent
from fedmeta.theory.replay import Look
from fedmeta.theory.verdicts import Diagnosis, Verdict, judge
from fedmeta.training.job import Job

_ROUNDING = {"float32": 1e-6, "float64": 1e-12}  # of what 𝓛 is, by what the run computed in


def changes(looks: Sequence[Look]) -> tuple[float | None, ...]:
    """𝓛^{t+1} − 𝓛ᵗ after every look; None where one of the two is not known."""
    found: list[float | None] = []
    for look, following in zip(looks, (*looks[1:], None), strict=True):
        here = look.lagrangian
        there = None if following is None or look.moved is None else following.lagrangian
        found.append(None if here is None or there is None else there - here)
    return tuple(found)


def allowed_changes(
    algorithm: ADMMFedMeta,
    constants: Constants,
    weights: Sequence[float],
    penalties: Sequence[float],
    strength: float,
    mu_r: float,
    looks: Sequence[Look],
) -> tuple[float | None, ...]:
    """The largest change of 𝓛 after every look, as derived; None where theory has none.

    Args:
        algorithm: of the run.
        constants, weights, penalties, strength, mu_r: see `penalties.inequalities`.
        looks: along the run.
    """
    found: list[float | None] = []
    for look in looks:
        deltas = tuple(delta(algorithm, look.round + later) for later in (0, 1))
        if look.moved is None or None in deltas:
            found.append(None)
        else:
            falls = descent(constants, weights, penalties, strength, mu_r, deltas)  # type: ignore[arg-type]
            found.append(falls.bound(look.moved))
    return tuple(found)


def delta(algorithm: ADMMFedMeta, number: int) -> float | None:
    """δ_t of a round; 0 with exact curvature, None if theory knows no such number.

    Example:
        >>> delta(ADMMFedMeta(penalty=1.0, curvature="finite-difference"), 10)
        0.005
    """
    schedule = algorithm.difference
    if algorithm.curvature == "exact":
        return 0.0
    if algorithm.curvature == "none" or not isinstance(schedule, InverseSchedule):
        return None
    return float((schedule.growth * number + schedule.offset) ** -schedule.power)


def judge_falls(
    job: Job,
    constants: Constants,
    diagnosis: Diagnosis,
    looks: Sequence[Look],
    allowed: Sequence[float | None],
) -> Verdict | None:
    """Whether 𝓛 fell as it must, up to the rounding of the run; None where nothing must.

    Nothing must where ρ is below its bound, or the run is not the theorem's algorithm.
    """
    pairs = zip(changes(looks), allowed, strict=True)
    slack = [may - did for did, may in pairs if did is not None and may is not None]
    small = any(v.status == "violated" for v in diagnosis.penalties if not v.printed)
    if not slack or small or diagnosis.departures:
        return None
    size = max(abs(look.lagrangian) for look in looks if look.lagrangian is not None)
    kept = min(slack) >= -size * _ROUNDING[job.layout.execution.dtype]
    name = "𝓛 falls in every round by Σ(a_e‖Δθ_i‖² + a_p‖Δθ‖²)"
    return Verdict(name, False, judge(kept, constants.closed_form), min(slack))
