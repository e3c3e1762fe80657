"""How the step sizes of a contestant were found, and whether a comparison is fair in that.

A method that finds its steps by itself beats one with a step that nobody chose, whatever else the
two do. So a comparison says of every contestant which it is:

- "automatic": the platform finds the length of its steps while it trains;
- "given": somebody chose the step size of training, by tuning or otherwise;
- "default": a number that the algorithm has where nothing else is said; tuned for no data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal

from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.algorithms.platform_optimizer import AUTOMATIC
from fedmeta.core.objective import RECOMMENDED, Adaptation

StepsFound = Literal["automatic", "given", "default"]

_SIZES = ("step_size", "server", "penalty")  # what sets the steps of training
GRID = "--grid step_size=0.03,0.1,0.3,1 --grid inner.step_size=0.1,0.3,1,3"


def steps_found(algorithm: Algorithm, own: Collection[str] = ()) -> StepsFound:
    """How the step sizes of an algorithm's training were found.

    Args:
        algorithm: with its hyper-parameters.
        own: the names of settings that somebody wrote down, which may be equal to the defaults.

    Example:
        >>> from fedmeta.algorithms import ADMMFedMeta, FedAvg
        >>> [steps_found(each) for each in (ADMMFedMeta(), FedAvg(), FedAvg(step_size=0.3))]
        ['automatic', 'default', 'given']
    """
    if algorithm.needs_losses:
        return "automatic"
    sizes = {name: value for name, value in _defaults(algorithm).items() if name in _SIZES}
    chosen = any(name in own or getattr(algorithm, name) != value for name, value in sizes.items())
    return "given" if chosen else "default"


def automatic_steps(algorithm: Algorithm, own: Collection[str] = ()) -> dict[str, Any]:
    """Settings that give an algorithm the automatic steps of the default, where it takes them.

    What somebody has given stays. An adaptation that belongs to the method (proximal, of a head
    alone) stays as well.

    Example:
        >>> from fedmeta.algorithms import Ditto, FedAvg, LocalOnly
        >>> automatic_steps(FedAvg()), automatic_steps(Ditto()), automatic_steps(LocalOnly())
        ({'server': 'auto', 'inner': 'auto'}, {'server': 'auto'}, {})
    """
    takes = _defaults(algorithm)
    if steps_found(algorithm, own) != "default" or "server" not in takes:
        return {}
    plain = "inner" not in own and algorithm.inner == takes.get("inner") == Adaptation()
    return {"server": "auto", **({"inner": "auto"} if plain else {})}


def with_automatic_steps(algorithm: Algorithm, own: Collection[str] = ()) -> Algorithm:
    """An algorithm with the automatic steps of the default, where it takes them.

    Example:
        >>> from fedmeta.algorithms import FedAvg
        >>> made = with_automatic_steps(FedAvg())
        >>> made.server == AUTOMATIC, made.inner is RECOMMENDED
        (True, True)
    """
    made = {"server": AUTOMATIC, "inner": RECOMMENDED}
    takes = {name: made[name] for name in automatic_steps(algorithm, own)}
    changed: Algorithm = replace(algorithm, **takes) if takes else algorithm  # type: ignore[type-var]
    return changed


def unfair_note(found: Mapping[str, str]) -> str | None:
    """What to know where a default that nobody tuned stands against steps found automatically.

    Args:
        found: how the steps of each contestant were found, by label; "" where that is not known.

    Example:
        >>> unfair_note({"admm-fedmeta": "automatic", "fedavg": "automatic"})
        >>> note = unfair_note({"admm-fedmeta": "automatic", "fedavg": "default"})
        >>> note[:65]
        'fedavg has a default step size that nobody tuned for these data, '
    """
    untuned = [label for label, how in found.items() if how == "default"]
    finding = [label for label, how in found.items() if how == "automatic"]
    if not untuned or not finding:
        return None
    have = "has a default step size" if len(untuned) == 1 else "have default step sizes"
    find = "finds its" if len(finding) == 1 else "find their"
    return (
        f"{', '.join(untuned)} {have} that nobody tuned for these data, {', '.join(finding)} "
        f"{find} own: what is between them may be no more than that"
    )


def _defaults(algorithm: Algorithm) -> dict[str, Any]:
    """Its hyper-parameters by name, as they are where nothing is said."""
    owner: Any = algorithm
    return {each.name: each.default for each in fields(owner)} if is_dataclass(owner) else {}
