"""Repeats of a training, each with a partition and a start of its own: at once where possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmeta.config.settings import Settings
from fedmeta.core.errors import DivergedError, MemoryBudgetError
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import Scaling
from fedmeta.engine.resolution import convolves
from fedmeta.training.from_settings import arguments
from fedmeta.training.job import Job, prepare
from fedmeta.training.loop import Callback, train
from fedmeta.training.together import Outcome, train_together, train_together_to, what_separates


@dataclass(frozen=True, eq=False)
class Repeat:
    """One run to be trained.

    Args:
        settings: with its own seed.
        federation: who takes part.
        scaling: of the inputs; None: as the settings say.
        initial: θ to start from; None: as the settings say.
        folder: where the run is kept; None keeps it in memory.
        origin: the settings table it was built from, kept with the run.
    """

    settings: Settings
    federation: Federation
    scaling: Scaling | None = None
    initial: Tree | None = None
    folder: Path | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def job(self, repeats: int, like: Job | None) -> Job:
        """The job, laid out like another one that it is to be trained together with."""
        one = self.settings
        return prepare(
            self.federation,
            one.model,
            one.algorithm,
            one.training,
            **self.arguments(),
            repeats=repeats,
            layout=like.layout if like else None,
        )

    def train(self, callbacks: Sequence[Callback] = (), *, resume: bool = False) -> Outcome:
        """The run by itself."""
        one = self.settings
        try:
            return train(
                self.federation,
                one.model,
                one.algorithm,
                one.training,
                **self.arguments(),
                folder=self.folder,
                resume=resume,
                callbacks=callbacks,
                origin=self.origin,
            )
        except DivergedError as error:
            return error

    def lasting(self, rounds: int) -> Repeat:
        """The same for another number of rounds, kept in memory."""
        training = replace(self.settings.training, rounds=rounds)
        return replace(self, settings=replace(self.settings, training=training), folder=None)

    def arguments(self) -> dict[str, Any]:
        """For `prepare` and `train`."""
        return arguments(self.settings, self.federation, self.scaling, self.initial)


def train_repeats(repeats: Sequence[Repeat], callbacks: Sequence[Callback] = ()) -> list[Outcome]:
    """Train every repeat: all at once where possible, else one after the other."""
    if (jobs := jobs_together(repeats)) is None:
        return [each.train(callbacks) for each in repeats]
    folders = [each.folder for each in repeats if each.folder is not None]
    origins = [each.origin for each in repeats]
    return train_together(jobs, folders=folders or None, origins=origins, callbacks=callbacks)


def train_stages(
    repeats: Sequence[Repeat], stops: Sequence[int], callbacks: Sequence[Callback] = ()
) -> dict[int, list[Outcome]]:
    """What the repeats end with, and what they would have ended with after other rounds.

    A shorter training is the beginning of a longer one, so that several cost no more than the
    longest. Only those that are trained all at once can be looked at on the way. Where they are
    not, and where nodes add noise for a promise that counts rounds, the repeats' own number of
    rounds is all there is.

    Args:
        repeats: as for `train_repeats`.
        stops: numbers of rounds beside their own.
        callbacks: told of every round.
    """
    own = repeats[0].settings.training.rounds
    longest = [each.lasting(max(own, *stops)) for each in repeats] if stops else list(repeats)
    jobs = jobs_together(longest) if stops else None
    if jobs is None or jobs[0].uplink.privacy.on:
        return {own: train_repeats(repeats, callbacks)}
    origins = [each.origin for each in repeats]
    return train_together_to(jobs, [own, *stops], origins=origins, callbacks=callbacks)


def jobs_together(repeats: Sequence[Repeat]) -> list[Job] | None:
    """All repeats as jobs to train together, or None where one after the other is the way.

    Convolutions on a CPU gain nothing from it: their chunks fill its caches already. Nor can it be
    where all of them together do not fit the memory; one may.
    """
    if len(repeats) < 2:
        return None
    jobs: list[Job] = []
    for each in repeats:
        try:
            jobs.append(each.job(len(repeats), jobs[0] if jobs else None))
        except MemoryBudgetError:
            return None
        slow = jobs[0].layout.execution.device == "cpu" and convolves(jobs[0].model)
        if slow or what_separates(jobs) is not None:
            return None
    return jobs
