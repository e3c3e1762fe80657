"""How long to train, and how often to evaluate and to save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmeta.core.errors import require, require_whole
from fedmeta.core.run_folder import Record


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
        patience: stop when the loss has not fallen for that many rounds; None: never.
    """

    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 10
    evaluation_steps: tuple[int, ...] = (0, 1, 5)
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    patience: int | None = None

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

    def stops(self, history: Sequence[Record]) -> bool:
        """Whether the loss has not fallen for `patience` rounds (judged on sources alone)."""
        if self.patience is None:
            return False
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


def loss_of(record: Record) -> float | None:
    """A round's training loss: the meta-loss, or the local loss of methods without one."""
    loss = record.get("meta_loss", record.get("local_loss"))
    return None if loss is None else float(loss)
