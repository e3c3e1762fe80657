"""What a device notices by itself: whether its adapted head still serves it, and whether it drifts.

Everything is a function of a few scalars, which are all that is kept of the samples.

- **Which model answers.** Of the newest 32 labelled samples the leads ℓ_meta − ℓ_adapted are kept.
  The device falls back to the meta-model where the adapted head is surely worse, and returns to it
  where it is surely better: the mean lead exceeds t·s/√n in either direction, with the 95 % point
  of Student's distribution as in `decision`.
- **Drift.** The calibrated confidence c of every answer moves a running mean, e ← e + λ(c − e) with
  λ = 1/50. The first n = 32 samples after learning say what is usual here, mean μ and deviation s:
  source nodes, whose samples the model was trained on, flatter. It drifts where
  e < μ − 3 s √(λ/(2 − λ) + 1/n), the control limit of such a mean (Roberts, Technometrics 1959)
  with the error of μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmeta_edge.decision import Losses, surely_above_zero

WINDOW = 32
USUAL = 32
RATE = 1 / 50
_LIMIT = 3 * math.sqrt(RATE / (2 - RATE) + 1 / USUAL)


@dataclass(frozen=True)
class Watch:
    """What is kept between samples.

    Args:
        adapted: whether the adapted head answers, or else the meta-model.
        fallbacks: how often the device fell back to the meta-model since it learned.
        leads: ℓ_meta − ℓ_adapted of the newest labelled samples, the oldest first.
        samples: how many were seen since it learned.
        total, squares: sums of the confidence, and of its squares, of the first of them.
        running: the running mean of the confidence; None before the first of them is over.
    """

    adapted: bool = False
    fallbacks: int = 0
    leads: tuple[float, ...] = ()
    samples: int = 0
    total: float = 0.0
    squares: float = 0.0
    running: float | None = None

    @classmethod
    def read(cls, kept: Any) -> Watch:
        """What a state file says.

        Raises:
            KeyError, TypeError, ValueError: it makes no sense.
        """
        numbers = {name: float(kept[name]) for name in ("total", "squares")}
        counts = {name: int(kept[name]) for name in ("fallbacks", "samples")}
        running = None if kept["running"] is None else float(kept["running"])
        leads = tuple(map(float, kept["leads"]))
        if (
            min(counts.values()) < 0
            or len(leads) > WINDOW
            or (running is None) != (counts["samples"] < USUAL)
            or not all(map(math.isfinite, (*numbers.values(), running or 0.0)))
        ):
            raise ValueError("what was noticed makes no sense")
        return cls(
            bool(kept["adapted"]),
            leads=leads,
            running=running,
            total=numbers["total"],
            squares=numbers["squares"],
            fallbacks=counts["fallbacks"],
            samples=counts["samples"],
        )

    def judged(self, leads: Losses) -> Watch:
        """After further labelled samples.

        Example:
            >>> worse = Watch(adapted=True).judged(np.array([-1.0, -1.2, -0.9]))
            >>> worse.adapted, worse.fallbacks, worse.judged(np.ones(29)).adapted
            (False, 1, True)
        """
        kept = np.array([*self.leads, *leads.tolist()])[-WINDOW:]
        adapted = self.adapted
        if len(kept) >= 2:
            known = bool(np.isfinite(kept).all())
            worse = not known or surely_above_zero(-kept)
            adapted = not worse if adapted else known and surely_above_zero(kept)
        fell = self.adapted and not adapted
        return replace(
            self, adapted=adapted, fallbacks=self.fallbacks + fell, leads=tuple(kept.tolist())
        )

    def seen(self, confidence: Losses) -> Watch:
        """After further samples, labelled or not.

        Example:
            >>> usual = Watch().seen(np.tile([0.9, 1.0], 16))
            >>> usual.drifts, usual.seen(np.full(20, 0.5)).drifts
            (False, True)
        """
        after = self
        for each in confidence.tolist():
            count, running = after.samples + 1, after.running
            total, squares = after.total, after.squares
            if count <= USUAL:
                total, squares = total + each, squares + each**2
                running = total / USUAL if count == USUAL else None
            elif running is not None:
                running += RATE * (each - running)
            after = replace(after, samples=count, total=total, squares=squares, running=running)
        return after

    @property
    def usual(self) -> float | None:
        """The mean confidence here; None before it is known."""
        return None if self.running is None else self.total / USUAL

    @property
    def drifts(self) -> bool | None:
        """Whether the confidence has surely fallen; None before it is known what is usual."""
        if self.running is None or self.usual is None:
            return None
        spread = math.sqrt(max(0.0, self.squares / USUAL - self.usual**2))
        return self.running < self.usual - _LIMIT * max(spread, 1 / USUAL)

    def report(self) -> dict[str, object]:
        """The scalars that a device may tell others."""
        return {
            "answers": "adapted" if self.adapted else "meta-model",
            "fallbacks": self.fallbacks,
            "samples": self.samples,
            "labelled": len(self.leads),
            "lead": _short(float(np.mean(self.leads))) if self.leads else None,
            "confidence": _short(self.running),
            "usual": _short(self.usual),
            "drift": self.drifts,
        }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)
