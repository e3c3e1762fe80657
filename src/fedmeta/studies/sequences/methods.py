"""What is done against forgetting: a prior, replay, isolation, or several of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedmeta.core.errors import SettingError, nearest

Kind = Literal["auto", "euclidean", "fisher", "outputs"]

AUTO: Kind = "auto"
"""`fisher`, each task's diagonal normalised, so that λ needs no choice."""
PRIORS: tuple[Kind, ...] = ("euclidean", "fisher", "outputs")
"""Regularisers towards the earlier meta-model, each with a strength λ."""

NONE, REPLAY, ISOLATION, JOINT = "none", "replay", "isolation", "joint"
NAMES = (AUTO, NONE, *PRIORS, REPLAY, ISOLATION, JOINT)
"""`joint` is no remedy but the reference: all tasks at once."""

COMPARED = (
    NONE,
    AUTO,
    *PRIORS,
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
        prior: the divergence to the earlier meta-model, or None.
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
        priors = [kind for kind in (AUTO, *PRIORS) if kind in parts]
        if len(priors) > 1 or len(set(parts)) < len(parts) or not parts:
            raise SettingError(
                f"method is {'+'.join(parts)!r}",
                "join at most one prior, replay and isolation, each named once",
            )
        if ISOLATION in parts and priors == ["outputs"]:
            raise SettingError(
                "outputs of earlier tasks come from other heads than those of a new one",
                "join isolation with euclidean or fisher",
            )
        return cls(
            priors[0] if priors else None, REPLAY in parts, ISOLATION in parts, JOINT in parts
        )

    def __str__(self) -> str:
        parts = {
            REPLAY: self.replay,
            ISOLATION: self.isolation,
            self.prior: self.prior is not None,
            JOINT: self.joint,
        }
        return "+".join(str(name) for name, used in parts.items() if used) or NONE
