"""Whether inequalities hold, and whether a run meets the conditions of the theorem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.theory.assumptions import (
    NonsmoothLayer,
    Summability,
    departures,
    nonsmooth_layers,
    summability,
)
from fedmeta.theory.bounds import Bound
from fedmeta.theory.constants import Constants
from fedmeta.theory.penalties import Inequality, inequalities

Status = Literal["holds", "not contradicted", "violated"]


@dataclass(frozen=True)
class Verdict:
    """What can be said of one inequality.

    Args:
        name: of the inequality.
        printed: in the paper's form, or in that of its proof.
        status: "holds" needs constants in closed form; estimates are lower bounds and can only
            contradict an inequality or fail to.
        slack: what is left; negative where it is violated.
        where: the node that has the least left, or None for what is about all of them.
    """

    name: str
    printed: bool
    status: Status
    slack: float
    where: int | None = None

    def __str__(self) -> str:
        form = "as printed" if self.printed else "as derived"
        place = "" if self.where is None else f" at node {self.where}"
        return f"{self.name} ({form}): {self.status}{place}, slack {self.slack:.3g}"


def status_of(kept: bool, closed_form: bool) -> Status:
    """The word for an inequality that the numbers keep or break.

    Example:
        >>> status_of(True, True), status_of(True, False)
        ('holds', 'not contradicted')
    """
    if not kept:
        return "violated"
    return "holds" if closed_form else "not contradicted"


def check_bound(bound: Bound, constants: Constants) -> Verdict:
    """The verdict on a bound whose right side comes from these constants.

    With estimates "violated" may also mean that a constant is larger than was seen.
    """
    status = status_of(bound.slack >= 0, constants.closed_form)
    return Verdict(bound.name, bound.printed, status, bound.slack)


def check_penalties(found: Sequence[Inequality], constants: Constants) -> tuple[Verdict, ...]:
    """One verdict per inequality on ρ: of the node that has the least slack."""
    verdicts = []
    for name, printed in dict.fromkeys((one.name, one.printed) for one in found):
        same = [one for one in found if (one.name, one.printed) == (name, printed)]
        worst = min(same, key=lambda one: one.slack)
        status = status_of(worst.satisfied, constants.closed_form)
        verdicts.append(Verdict(name, printed, status, worst.slack, worst.node))
    return tuple(verdicts)


@dataclass(frozen=True)
class TheoremCheck:
    """Whether a run lies inside the theorem, and where it does not.

    Args:
        penalties: verdicts on ρ, as printed and as derived.
        difference: whether δ is summable.
        layers: what breaks smoothness.
        departures: in what the algorithm is another one.
    """

    penalties: tuple[Verdict, ...]
    difference: Summability
    layers: tuple[NonsmoothLayer, ...]
    departures: tuple[str, ...]

    @property
    def inside(self) -> bool:
        """Whether the derived inequalities are kept and nothing else stands against the theorem."""
        smooth = not self.layers and self.difference.summable is not False
        return self.applies_to_algorithm and smooth

    @property
    def applies_to_algorithm(self) -> bool:
        """Whether the derived inequalities on ρ are kept, by the theorem's own algorithm."""
        kept = all(v.status != "violated" for v in self.penalties if not v.printed)
        return kept and not self.departures

    def lines(self) -> tuple[str, ...]:
        """The same for people, a line each."""
        known = {True: "summable", False: "not summable", None: "unknown"}
        return (
            *map(str, self.penalties),
            f"δ: {known[self.difference.summable]} ({self.difference.reason})",
            *(f"layer {x.name!r} ({x.kind}) breaks the {x.breaks}" for x in self.layers),
            *self.departures,
        )


def check_theorem(
    algorithm: ADMMFedMeta,
    constants: Constants,
    weights: Sequence[float],
    penalties: Sequence[float],
    strength: float = 0.0,
    mu_r: float = 2.0,
    module: nn.Module | None = None,
    further: Sequence[str] = (),
) -> TheoremCheck:
    """Hold a run against the theorem's assumptions.

    Args:
        algorithm: as it was run.
        constants: in closed form or estimated.
        weights, penalties, strength, mu_r: see `penalties.inequalities`.
        module: the model, for its layers; None looks at none.
        further: departures that the algorithm does not know of, such as lost uploads.
    """
    arguments = constants, weights, penalties, strength, mu_r
    found = [*inequalities(*arguments, printed=False), *inequalities(*arguments, printed=True)]
    return TheoremCheck(
        check_penalties(found, constants),
        summability(algorithm.meta_gradient),
        () if module is None else nonsmooth_layers(module),
        (*departures(algorithm), *further),
    )
