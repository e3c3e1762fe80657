"""What the theorem assumes of model and algorithm, beyond the size of ρ."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.core.meta_gradient import InverseSchedule, MetaGradient
from fedmeta.models.networks import SamePool

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
        >>> departures(ADMMFedMeta(penalty=0.3, resplit=False))
        ()
    """
    inner = algorithm.inner
    facts = {
        "the penalty changes during the run": algorithm.automatic,
        f"{algorithm.local_steps} local steps instead of 1": algorithm.local_steps != 1,
        "the local step is not 1/ρ": algorithm.local_step_size is not None,
        "support and query sets are divided anew in every round": algorithm.resplit,
        f"{inner.steps} adaptation steps instead of 1": inner.steps != 1,
        "adaptation in mini-batches": inner.batch_size is not None,
        "step sizes of adaptation are learned": inner.learned != "none",
    }
    return tuple(text for text, departs in facts.items() if departs)
