"""What is done against forgetting: a prior, replay, isolation, or several of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedmeta.core.errors import SettingError, nearest

Kind = Literal["auto", "euclidean", "fisher", "outputs", "generated", "fedewc", "fedlwf", "target"]

AUTO: Kind = "auto"
"""`fisher`, each task's diagonal normalised, so that λ needs no choice."""
PRIORS: tuple[Kind, ...] = ("euclidean", "fisher", "outputs", "generated")
"""Regularisers towards the earlier meta-model, each with a strength λ; the platform's alone."""
RIVALS: tuple[Kind, ...] = ("fedewc", "fedlwf", "target")
"""Algorithms whose nodes hold on to the earlier model, each with a strength λ."""

NONE, REPLAY, ISOLATION, JOINT = "none", "replay", "isolation", "joint"
NAMES = (AUTO, NONE, *PRIORS, *RIVALS, REPLAY, ISOLATION, JOINT)
"""`joint` is no remedy but the reference: all tasks at once."""

_ON_WHOLE_MODELS = ("outputs", "generated", *RIVALS)
COMPARED = (
    NONE,
    AUTO,
    *PRIORS,
    *RIVALS,
    REPLAY,
    ISOLATION,
    "replay+euclidean",
    "isolation+euclidean",
    JOINT,
)
"""What a comparison shows where nobody says more."""


@dataclass(frozen=True)
class Method:
    """A remedy against forgetting, or several.

    Args:
        prior: the divergence to the earlier meta-model, or the rival that has one; or None.
        replay: whether devices keep some of their past samples.
        isolation: whether every task has a last layer of its own.
        joint: not one task after the other but all at once.

    Example:
        >>> Method.parse("replay+euclidean")
        Method(prior='euclidean', replay=True, isolation=False, joint=False)
    """

    prior: Kind | None = None
    replay: bool = False
    isolation: bool = False
    joint: bool = False

    @classmethod
    def parse(cls, text: str | Sequence[str]) -> Method:
        """A method from its name: one of `NAMES`, or several joined by "+" (or as a list)."""
        parts = text.split("+") if isinstance(text, str) else list(text)
        for part in parts:
            if part not in NAMES:
                raise SettingError(f"method {part!r} is unknown", nearest(part, NAMES))
        alone = [part for part in (NONE, JOINT) if part in parts]
        if alone and len(parts) > 1:
            raise SettingError(
                f"method {'+'.join(parts)!r} joins {alone[0]!r} with others", "name it alone"
            )
        priors = [kind for kind in (AUTO, *PRIORS, *RIVALS) if kind in parts]
        if len(priors) > 1 or len(set(parts)) < len(parts) or not parts:
            raise SettingError(
                f"method is {'+'.join(parts)!r}",
                "join at most one prior, replay and isolation, each named once",
            )
        if ISOLATION in parts and priors and priors[0] in _ON_WHOLE_MODELS:
            raise SettingError(
                f"isolation is joined with {priors[0]}, but earlier tasks have other heads than a "
                "new one",
                "join isolation with euclidean or fisher",
            )
        return cls(
            priors[0] if priors else None, REPLAY in parts, ISOLATION in parts, JOINT in parts
        )

    @property
    def rival(self) -> str | None:
        """The algorithm that a task is learned with, where it is not that of the settings."""
        return self.prior if self.prior in RIVALS else None

    def __str__(self) -> str:
        parts = {
            REPLAY: self.replay,
            ISOLATION: self.isolation,
            self.prior: self.prior is not None,
            JOINT: self.joint,
        }
        return "+".join(str(name) for name, used in parts.items() if used) or NONE
