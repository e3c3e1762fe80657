"""Training a cell with its seeds: the nodes of each, its run, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from experiments.cell import Cell
from experiments.own_data import MOTION, TABLES, people
from experiments.results import thinned
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import loss_of
from fedmeta.core.errors import DivergedError
from fedmeta.core.run_folder import Record
from fedmeta.core.serialization import deserialize
from fedmeta.data import DataSettings, Federation, Pool, deal_out, read
from fedmeta.models.meta_model import MetaModel
from fedmeta.training.callbacks import Callback
from fedmeta.training.many import train_many, train_to_stops
from fedmeta.training.run import Outcome, Run
from fedmeta.training.train import RunRequest

Progress = Callable[[str], Sequence[Callback]]
"""Given a label, the callbacks of a training."""


def seeded(settings: RunSpec, seed: int) -> RunSpec:
    """The same settings with another seed."""
    return replace(settings, training=replace(settings.training, seed=seed))


@lru_cache(maxsize=64)
def federation(data: DataSettings, seed: int) -> Federation:
    """Who holds what; cells that follow one another often ask for the same."""
    if data.name == MOTION:
        return people(data, seed)
    return deal_out(pool(data, seed), data, seed)


def pool(data: DataSettings, seed: int) -> Pool:
    """The samples; the files of a data set are read once."""
    if data.name in TABLES:
        return TABLES[data.name](seed)
    if data.name in ("sinusoid", "glyphs"):  # drawn anew by every seed
        return read(data, seed)
    return _files(DataSettings(data.name, data.folder, label=data.label, node=data.node))


@lru_cache(maxsize=1)
def _files(data: DataSettings) -> Pool:
    return read(data, 0)


def record(seed: int, outcome: Outcome) -> dict[str, Any]:
    """What is kept of a run. A run that diverged is kept as one that did.

    Returns:
        `accuracy` (of values the mean squared error) and, where targets have precise sets,
        `precise`, by adaptation steps; `own_mean`, the error of each device's own mean; `decided`
        and `decided_precise`, where targets decide how to adapt; `steps`, the algorithm's own;
        `rounds`, `gradients` and `bytes` per node; the `loss` on the sources and the accuracy
        on the way (`reached` and `reached_precise`), each as [rounds, values].
    """
    if isinstance(outcome, DivergedError):
        return {"seed": seed, "diverged": True, "why": outcome.problem}
    summary, history = outcome.summary, list(outcome.history)
    steps, decided = str(summary["adaptation_steps"]), summary.get("decided_metric", {})
    kept = {
        "seed": seed,
        "diverged": False,
        "accuracy": means(summary["target_metric"]),
        "precise": means(summary.get("precise_metric") or {}),
        "own_mean": short(summary["own_mean"].get("mean")),
        "decided": short(decided.get("target", {}).get("mean")),
        "decided_precise": short(decided.get("precise", {}).get("mean")),
        "steps": summary["adaptation_steps"],
        "rounds": summary["rounds"],
        "gradients": short(summary["gradient_evaluations"]),
        "bytes": short(summary["bytes_per_node"]),
        "loss": _curve(history, loss_of),
        "reached": _curve(history, lambda each: each.get("target", {}).get(steps)),
        "reached_precise": _curve(history, lambda each: each.get("precise", {}).get(steps)),
    }
    return {name: value for name, value in kept.items() if value not in ({}, [[], []], None)}


def train_seeds(
    settings: RunSpec, nodes: Mapping[int, Federation], callbacks: Sequence[Callback] = ()
) -> list[Outcome]:
    """The same training for several seeds, each on nodes of its own."""
    return train_many(_repeats(settings, nodes), callbacks)


def train_cell(
    cell: Cell, settings: RunSpec, stops: Sequence[int], callbacks: Sequence[Callback]
) -> dict[int, list[dict[str, Any]]]:
    """What is kept of the repeats of a cell, and after other rounds that are passed.

    Args:
        cell: for its seeds and what is kept of a run.
        settings: as they are trained: at the tuned point and with the final number of rounds.
        stops: numbers of rounds beside their own.
        callbacks: of the training.
    """
    nodes = {seed: federation(settings.data_settings, seed) for seed in cell.seeds}
    kept: dict[int, list[dict[str, Any]]] = {}
    for stop, outcomes in train_to_stops(_repeats(settings, nodes), stops, callbacks).items():
        kept[stop] = [record(seed, each) for seed, each in zip(cell.seeds, outcomes, strict=True)]
        if cell.final_loss:
            losses = final_losses(settings, nodes, outcomes)
            pairs = zip(kept[stop], losses, strict=True)
            kept[stop] = [{**one, "final_loss": loss} for one, loss in pairs]
    return kept


def _repeats(settings: RunSpec, nodes: Mapping[int, Federation]) -> list[RunRequest]:
    return [RunRequest(seeded(settings, seed), each) for seed, each in nodes.items()]


def final_losses(
    settings: RunSpec, nodes: Mapping[int, Federation], outcomes: Sequence[Outcome]
) -> list[float | None]:
    """The source meta-loss of the models that runs ended with, on the samples of their first round.

    Losses on the way are those of the θ that were tried; a model that is an average of them was
    not. One more first round, from there, tells: its samples are divided as they were when the loss
    of θ¹ was seen, so that the two can be compared.

    Args:
        settings: what was trained with, step sizes that are not learned.
        nodes: of each seed.
        outcomes: how it ended with each.

    Returns:
        None for a run that diverged.
    """
    once = replace(settings, training=replace(settings.training, rounds=1))
    again = {
        seed: RunRequest(
            _started(seeded(once, seed), outcome.meta_model),
            drawn.with_nodes(drawn.sources),
            outcome.meta_model.scaling,
        )
        for (seed, drawn), outcome in zip(nodes.items(), outcomes, strict=True)
        if not isinstance(outcome, DivergedError)
    }
    losses: dict[int, float | None] = {}
    for seed, outcome in zip(again, train_many(list(again.values())), strict=True):
        if not isinstance(outcome, DivergedError):
            losses[seed] = short(loss_of(outcome.history[0]), 4)
    return [losses.get(seed) for seed in nodes]


def _started(spec: RunSpec, model: MetaModel) -> RunSpec:
    """The spec from where a run ended, with its inner step, which other weights may not find."""
    algorithm: Any = spec.algorithm
    algorithm = replace(algorithm, inner=model.adaptation)
    return replace(spec, start=model.theta, algorithm=algorithm)


def execution_of(run: Run) -> Execution:
    """How a run was computed, everything resolved."""
    return deserialize(Execution, run.summary["settings"]["execution"], "execution")


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
