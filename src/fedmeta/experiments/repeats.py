"""A cell's repeats: trained together where that can be, and what is kept of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedmeta.data import DataSettings, Federation, Pool, Scaling, deal_out, fit_scaling, read
from fedmeta.engines.execution import convolves
from fedmeta.errors import DivergedError
from fedmeta.experiments.results import thinned
from fedmeta.job import Job, loss_of, prepare
from fedmeta.plain import to_plain
from fedmeta.repeats import Outcome, train_together, what_separates
from fedmeta.run_folder import Record
from fedmeta.settings import Settings
from fedmeta.training import Callback, train
from fedmeta.tree import Tree


@dataclass(frozen=True, eq=False)
class Repeat:
    """One run to be trained.

    Args:
        settings: with its own seed.
        federation: who takes part.
        scaling: of the inputs; None: as the settings say.
        initial: θ to start from; None: as the settings say.
    """

    settings: Settings
    federation: Federation
    scaling: Scaling | None = None
    initial: Tree | None = None

    def arguments(self) -> dict[str, Any]:
        """For `prepare` and `train`."""
        data = self.settings.data
        kind, over, floor = data.scaling, data.scaling_from, data.scaling_floor
        return {
            "loss": self.settings.loss,
            "scaling": self.scaling or fit_scaling(self.federation, kind, over, floor),
            "initial": self.initial,
            "execution": self.settings.execution,
            "participation": self.settings.participation,
            "about_data": to_plain(data),
            "augmentation": self.settings.augmentation,
        }

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


def seeded(settings: Settings, seed: int) -> Settings:
    """The same settings with another seed."""
    return replace(settings, training=replace(settings.training, seed=seed))


@lru_cache(maxsize=64)
def federation(data: DataSettings, seed: int) -> Federation:
    """Who holds what; cells that follow one another often ask for the same."""
    return deal_out(pool(data, seed), data, seed)


def pool(data: DataSettings, seed: int) -> Pool:
    """The samples; the files of a data set are read once."""
    if data.name == "sinusoid":  # drawn anew by every seed
        return read(data, seed)
    return _files(DataSettings(data.name, data.folder, label=data.label, node=data.node))


@lru_cache(maxsize=1)
def _files(data: DataSettings) -> Pool:
    return read(data, 0)


def train_repeats(repeats: Sequence[Repeat], callbacks: Sequence[Callback] = ()) -> list[Outcome]:
    """Train every repeat: all at once where possible, else one after the other."""
    if (jobs := _together(repeats)) is not None:
        return train_together(jobs, callbacks=callbacks)
    outcomes: list[Outcome] = []
    for each in repeats:
        one = each.settings
        try:
            run = train(
                each.federation,
                one.model,
                one.algorithm,
                one.training,
                **each.arguments(),
                callbacks=callbacks,
            )
            outcomes.append(run)
        except DivergedError as error:
            outcomes.append(error)
    return outcomes


def _together(repeats: Sequence[Repeat]) -> list[Job] | None:
    """All repeats as jobs to train together, or None where one after the other is the way.

    Convolutions on a CPU gain nothing from it. Each repeat with a prior has a θ_p of its own, but
    those that are trained together share one algorithm.
    """
    if len(repeats) == 1 or getattr(repeats[0].settings.algorithm, "prior", None) is not None:
        return None
    jobs: list[Job] = []
    for each in repeats:
        jobs.append(each.job(len(repeats), jobs[0] if jobs else None))
        slow = jobs[0].layout.execution.device == "cpu" and convolves(jobs[0].model)
        if slow or what_separates(jobs) is not None:
            return None
    return jobs


def record(seed: int, outcome: Outcome) -> dict[str, Any]:
    """What is kept of a run. A run that diverged is kept as one that did.

    Returns:
        `accuracy` and, where targets have precise sets, `precise`, by adaptation steps; `steps`,
        the algorithm's own number of them; `rounds`, `gradients` and `bytes` per node; the `loss`
        on the sources and the accuracy on the way (`reached` and `reached_precise`), each as
        [rounds, values].
    """
    if isinstance(outcome, DivergedError):
        return {"seed": seed, "diverged": True, "why": outcome.problem}
    summary, history = outcome.summary, list(outcome.history)
    steps = str(summary["adaptation_steps"])
    kept = {
        "seed": seed,
        "diverged": False,
        "accuracy": means(summary["target_metric"]),
        "precise": means(summary.get("precise_metric") or {}),
        "steps": summary["adaptation_steps"],
        "rounds": summary["rounds"],
        "gradients": short(summary["gradient_evaluations"]),
        "bytes": short(summary["bytes_per_node"]),
        "loss": _curve(history, loss_of),
        "reached": _curve(history, lambda each: each.get("target", {}).get(steps)),
        "reached_precise": _curve(history, lambda each: each.get("precise", {}).get(steps)),
    }
    return {name: value for name, value in kept.items() if value not in ({}, [[], []])}


def means(metric: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """The mean over targets by adaptation steps, from a summary of them."""
    return {steps: short(row["mean"]) for steps, row in metric.items()}


def _curve(
    history: Sequence[Record], value: Callable[[Record], float | None]
) -> list[list[float | None]]:
    known = [(each["round"], value(each)) for each in history]
    points = thinned([(number, short(each, 4)) for number, each in known if each is not None])
    return [list(part) for part in zip(*points, strict=True)] or [[], []]


def short(value: float | None, digits: int = 6) -> float | None:
    """A number with the digits that mean something.

    Example:
        >>> short(0.123456789)
        0.123457
    """
    return None if value is None else float(f"{value:.{digits}g}")
