"""Whether inequalities hold, and whether a run meets the conditions of the theorem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import nn

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.core.meta_gradient import InverseSchedule, MetaGradient
from fedmeta.models.networks import SamePool
from fedmeta.theory.bounds import Bound
from fedmeta.theory.penalties import Inequality, Setting, inequalities

Status = Literal["holds", "not contradicted", "violated", "not covered"]

# Slopes jump: the loss has no Lipschitz gradient, and μ does not exist.
_KINKED: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ReLU6,
    nn.PReLU,
    nn.RReLU,
    nn.SELU,
    nn.Threshold,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardshrink,
    nn.Softshrink,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)


@dataclass(frozen=True)
class Verdict:
    """What can be said of one inequality.

    Args:
        name: of the inequality.
        printed: in the paper's form, or in that of its proof.
        status: "holds" needs constants in closed form; estimates are lower bounds and can only
            contradict an inequality or fail to; "not covered" is what the theorem says nothing of.
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


def check_bound(bound: Bound, closed_form: bool) -> Verdict:
    """The verdict on a bound whose right side comes from constants in closed form, or estimates.

    With estimates "violated" may also mean that a constant is larger than was seen.
    """
    status = status_of(bound.slack >= 0, closed_form)
    return Verdict(bound.name, bound.printed, status, bound.slack)


def check_penalties(
    found: Sequence[Inequality], closed_form: bool, fixed: bool = True
) -> tuple[Verdict, ...]:
    """One verdict per inequality on ρ: of the node that has the least slack.

    Args:
        found: the inequalities of all nodes.
        closed_form: whether constants are proven.
        fixed: whether ρ stays as it is; the theorem does not cover one that changes.
    """
    verdicts = []
    for name, printed in dict.fromkeys((one.name, one.printed) for one in found):
        same = [one for one in found if (one.name, one.printed) == (name, printed)]
        worst = min(same, key=lambda one: one.slack)
        status = status_of(worst.satisfied, closed_form) if fixed else "not covered"
        verdicts.append(Verdict(name, printed, status, worst.slack, worst.node))
    return tuple(verdicts)


class NonsmoothLayer(NamedTuple):
    """A layer that breaks an assumption.

    Args:
        name: where it is in the model.
        kind: its type.
        breaks: "gradient" (no μ, hence no ν) or "Hessian" (no ζ, hence no ν).
    """

    name: str
    kind: str
    breaks: str


def nonsmooth_layers(module: nn.Module) -> tuple[NonsmoothLayer, ...]:
    """Which layers keep the loss from being smooth, or its Hessian from being Lipschitz.

    Only layers that are modules are seen, not functions that a model's own code calls.

    Example:
        >>> nonsmooth_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ELU(), nn.Tanh()))
        (NonsmoothLayer(name='1', kind='ReLU', breaks='gradient'), \
NonsmoothLayer(name='2', kind='ELU', breaks='Hessian'))
    """
    found = []
    for name, layer in module.named_modules():
        kinked = isinstance(layer, _KINKED)
        kinked |= isinstance(layer, SamePool) and layer.kind == "max"
        kinked |= isinstance(layer, nn.ELU) and layer.alpha != 1
        if kinked:
            found.append(NonsmoothLayer(name, type(layer).__name__, "gradient"))
        elif isinstance(layer, nn.ELU | nn.CELU):
            # The slope is 1 on both sides of 0 and the curvature jumps from 1/α to 0.
            found.append(NonsmoothLayer(name, type(layer).__name__, "Hessian"))
    return tuple(found)


class Summability(NamedTuple):
    """Whether Σδ_t is finite.

    Args:
        summable: True, False, or None where only the schedule's author can know.
        reason: why.
    """

    summable: bool | None
    reason: str


def summability(rule: MetaGradient) -> Summability:
    """Whether the differences of step 3 add up to a finite error, as the theorem asks.

    The paper's own δ_t = 1/(10t + 100) does not.

    Example:
        >>> from fedmeta.core.objective import Adaptation
        >>> summability(MetaGradient(Adaptation(), "finite-difference")).reason
        'Σ 1/(10t + 100)^1 is infinite: the power must exceed 1'
    """
    if rule.curvature == "exact":
        return Summability(True, "exact curvature makes no difference error")
    if rule.curvature == "none":
        return Summability(False, "without curvature the error of G does not vanish")
    schedule = rule.difference
    if not isinstance(schedule, InverseSchedule):
        return Summability(None, "the schedule of δ is a function of your own")
    form = f"Σ 1/({schedule.growth:g}t + {schedule.offset:g})^{schedule.power:g}"
    if schedule.growth == 0:
        return Summability(False, f"{form} is infinite: δ does not fall")
    if schedule.power <= 1:
        return Summability(False, f"{form} is infinite: the power must exceed 1")
    return Summability(True, f"{form} is finite")


def departures(algorithm: ADMMFedMeta) -> tuple[str, ...]:
    """In what a run is another algorithm than the one the theorem is about; empty if in nothing.

    Example:
        >>> departures(ADMMFedMeta(penalty=0.3, resplit="none"))
        ()
    """
    inner = algorithm.inner
    facts = {
        "the penalty changes during the run": algorithm.automatic,
        f"{algorithm.local_steps} local steps instead of 1": algorithm.local_steps != 1,
        "the local step is not 1/ρ": algorithm.local_step_size is not None,
        "support and query sets are divided anew in every round": algorithm.resplit != "none",
        f"{inner.steps} adaptation steps instead of 1": inner.steps != 1,
        "adaptation in mini-batches": inner.batch_size is not None,
        "step sizes of adaptation are learned": inner.learned != "none",
    }
    return tuple(text for text, departs in facts.items() if departs)


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
    setting: Setting,
    module: nn.Module | None = None,
    further: Sequence[str] = (),
) -> TheoremCheck:
    """Hold a run against the theorem's assumptions.

    Args:
        algorithm: as it was run.
        setting: constants, weights, penalties and prior.
        module: the model, for its layers; None looks at none.
        further: departures that the algorithm does not know of, such as lost uploads.
    """
    found = [*inequalities(setting, printed=False), *inequalities(setting, printed=True)]
    return TheoremCheck(
        check_penalties(found, setting.constants.closed_form, fixed=not algorithm.automatic),
        summability(algorithm.meta_gradient),
        () if module is None else nonsmooth_layers(module),
        (*departures(algorithm), *further),
    )
