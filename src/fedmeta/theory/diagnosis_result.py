"""What the diagnosis of a run found, as numbers and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from fedmeta.theory.constants import Constants
from fedmeta.theory.descent import lagrangian_changes
from fedmeta.theory.measured_bounds import MeasuredBound
from fedmeta.theory.theorem_check import TheoremCheck, Verdict
from fedmeta.theory.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What theory says of a run, and what was measured.

    Args:
        trajectory: the run computed again.
        nodes: names of the sources that have constants.
        constants: theirs, and of `target`.
        target: name of the target that adaptation was judged at, or None.
        penalties: ρ_i of those nodes; under an automatic penalty those of a fixed one whose steps
            would be as long (the median over rounds, in proportion to w_i).
        least: the smallest ρ_i that the theorem allows: as derived and as printed.
        theorem: ρ, δ, layers, departures.
        allowed: by how much 𝓛 may change after each measurement; None where nothing is known.
        descent: the verdict on that, or None.
        bounds: what is bounded, with verdicts.
        notes: what a reader should know besides.
    """

    trajectory: Trajectory
    nodes: tuple[str, ...]
    constants: Constants
    target: str | None
    penalties: tuple[float, ...]
    least: tuple[tuple[float, ...], tuple[float, ...]]
    theorem: TheoremCheck
    allowed: tuple[float | None, ...]
    descent: Verdict | None
    bounds: tuple[MeasuredBound, ...]
    notes: tuple[str, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All of them, in the order of the theory."""
        descent = () if self.descent is None else (self.descent,)
        return (*self.theorem.penalties, *descent, *(each.verdict for each in self.bounds))

    @property
    def slope(self) -> float | None:
        """The log-log slope of the smallest ‖∇F‖² so far against the round; the theorem's is −1."""
        seen = [(one.round, one.gradient_norm**2) for one in self.trajectory.measurements]
        if len(seen) < 3 or not all(square > 0 for _, square in seen):
            return None
        rounds, squares = np.array(seen).T
        least = np.minimum.accumulate(squares)
        return float(np.polyfit(np.log(rounds), np.log(least), 1)[0])

    def rises(self) -> tuple[int, int]:
        """In how many rounds 𝓛 rose, and how many were measured."""
        changes = lagrangian_changes(self.trajectory.measurements)
        known = [change for change in changes if change is not None]
        return sum(change > 0 for change in known), len(known)

    def plain(self) -> dict[str, Any]:
        """For JSON; what is infinite or no number is None."""
        nu = [self.constants.nu(printed) for printed in (False, True)]
        nodes = [
            {
                "name": name,
                **asdict(self.constants.nodes[place]),
                "nu_derived": nu[0][place],
                "nu_printed": nu[1][place],
                "penalty": self.penalties[place],
                "least_derived": self.least[0][place],
                "least_printed": self.least[1][place],
            }
            for place, name in enumerate(self.nodes)
        ]
        own, measurements = self.constants.target, self.trajectory.measurements
        changes = lagrangian_changes(measurements)
        along = [
            {**{k: v for k, v in asdict(one).items() if k != "moved"}, "change": c, "allowed": a}
            for one, c, a in zip(measurements, changes, self.allowed, strict=True)
        ]
        found = {
            "rounds": self.trajectory.rounds,
            "replay_off": self.trajectory.deviation,
            "inside_the_theorem": self.theorem.inside,
            "closed_form": self.constants.closed_form,
            "step_size": self.constants.step_size,
            "nodes": nodes,
            "target": None if own is None else {"name": self.target, **asdict(own)},
            "verdicts": [{**asdict(each), "text": str(each)} for each in self.verdicts],
            "bounds": [
                {
                    "name": each.bound.name,
                    "printed": each.bound.printed,
                    "left": each.bound.left,
                    "right": each.bound.right,
                    "terms": dict(each.bound.terms),
                    "status": each.verdict.status,
                }
                for each in self.bounds
            ],
            "difference": self.theorem.difference._asdict(),
            "layers": [layer._asdict() for layer in self.theorem.layers],
            "departures": list(self.theorem.departures),
            "notes": list(self.notes),
            "slope": self.slope,
            "along": along,
        }
        cleaned: dict[str, Any] = _finite(found)
        return cleaned


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
