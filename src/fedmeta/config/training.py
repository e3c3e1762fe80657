"""How long to train, and how often to evaluate and to save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedmeta.core.errors import SettingError, require, require_choice, require_whole
from fedmeta.core.metrics import METRICS, MetricName, sign_of
from fedmeta.core.run_folder import Record
from fedmeta.core.serialization import LATER


@dataclass(frozen=True)
class TrainingSettings:
    """How long to train, and how often to look and to save.

    Args:
        rounds: T ≥ 0, platform updates.
        seed: of everything that is drawn.
        evaluate_every: rounds between evaluations on the targets; 0: only after the last round.
        evaluation_steps: numbers of adaptation steps to evaluate after, besides 0 and the
            adaptation's own.
        checkpoint_every: rounds between checkpoints.
        keep_checkpoints: how many of the newest stay on disk.
        decide: evaluate also what targets reach that decide by their own samples whether and how
            to adapt (`core.decision`).
        patience: stop when the loss, or the `metric` if one is named, has not become better for
            that many rounds; None: never. Both are judged on source nodes alone.
        metric: what tunes, and stops with `patience` (then evaluated on source nodes whenever
            targets are): "accuracy", "balanced-accuracy", "f1" or "auc"; "mse", "mae" or "r2" for
            regression. None: accuracy or mse tunes, the loss stops.
    """

    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 10
    evaluation_steps: tuple[int, ...] = (0, 1, 5)
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    patience: int | None = None
    decide: bool = field(default=False, metadata=LATER)
    metric: MetricName | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "evaluation_steps", tuple(self.evaluation_steps))
        require_whole("rounds", self.rounds, 0)
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2⁶³ − 1")
        require(self.evaluate_every >= 0, "evaluate_every", self.evaluate_every, "0 or more")
        for name in ("checkpoint_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number ≥ 1")
        require(
            len(self.evaluation_steps) > 0 and min(self.evaluation_steps) >= 0,
            "evaluation_steps",
            self.evaluation_steps,
            "whole numbers of at least 0, e.g. [0, 1, 5]",
        )
        require(self.patience is None or self.patience >= 1, "patience", self.patience, "1 or more")
        if self.metric is not None:
            require_choice("metric", self.metric, METRICS)
        if self.watches_sources and not 1 <= self.evaluate_every <= (self.patience or 0):
            raise SettingError(
                f"evaluate_every is {self.evaluate_every}, but {self.metric} is to stop the run "
                f"after {self.patience} rounds",
                "evaluate every round or so: a number from 1 to patience",
            )

    @property
    def watches_sources(self) -> bool:
        """Whether a metric of the source nodes stops the run."""
        return self.metric is not None and self.patience is not None

    def stops(self, history: Sequence[Record]) -> bool:
        """Whether loss or metric has not become better for `patience` rounds (sources alone)."""
        if self.patience is None:
            return False
        if self.metric is not None:
            return _stands_still(history, self.metric, self.patience)
        losses = [loss for record in history if (loss := loss_of(record)) is not None]
        if len(losses) <= self.patience:
            return False
        return min(losses[-self.patience :]) >= min(losses[: -self.patience])

    def evaluates(self, number: int) -> bool:
        """Whether the targets are evaluated after a round."""
        due = self.evaluate_every > 0 and number % self.evaluate_every == 0
        return due or number == self.rounds

    def saves(self, number: int) -> bool:
        """Whether a checkpoint is written after a round."""
        return number == self.rounds or number % self.checkpoint_every == 0

    def waits_for(self, number: int) -> bool:
        """Whether a round must be over before the next may start."""
        return self.patience is not None or self.evaluates(number) or self.saves(number)


def _stands_still(history: Sequence[Record], metric: str, patience: int) -> bool:
    """Whether the sources' metric was at its best before the last `patience` rounds."""
    known = [(each["round"], each["sources"]) for each in history if "sources" in each]
    reached = [(number, row[metric]) for number, row in known if row.get(metric) is not None]
    if not reached:
        return False
    since, sign = reached[-1][0] - patience, sign_of(metric)
    earlier = [sign * value for number, value in reached if number <= since]
    recent = [sign * value for number, value in reached if number > since]
    return bool(earlier) and max(recent) <= max(earlier)


def loss_of(record: Record) -> float | None:
    """A round's training loss: the meta-loss, or the local loss of methods without one."""
    loss = record.get("meta_loss", record.get("local_loss"))
    return None if loss is None else float(loss)
