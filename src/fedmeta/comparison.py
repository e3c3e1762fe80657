"""Several algorithms on the same footing: same seeds, same splits, equal rounds or equal work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedmeta.algorithms import FedAvg
from fedmeta.algorithms.base import Algorithm
from fedmeta.data import load
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import fit_scaling
from fedmeta.errors import DivergedError, RunFolderError, SettingError, require
from fedmeta.intervals import interval
from fedmeta.objective import Adaptation
from fedmeta.plain import to_plain
from fedmeta.settings import Settings
from fedmeta.storage import write_json
from fedmeta.training import Callback, Run, gradient_evaluations, train

FORMAT = 1
FILE = "comparison.json"
Equal = Literal["rounds", "gradients"]


@dataclass(frozen=True)
class Contestant:
    """An algorithm in a comparison, and how people call it there."""

    label: str
    algorithm: Algorithm


def train_settings(
    settings: Settings,
    federation: Federation,
    *,
    folder: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    origin: Mapping[str, Any] | None = None,
) -> Run:
    """Train what the settings say on a federation that was loaded by them."""
    return train(
        federation,
        settings.model,
        settings.algorithm,
        settings.training,
        loss=settings.loss,
        scaling=fit_scaling(federation, settings.data.scaling, settings.data.scaling_from),
        execution=settings.execution,
        participation=settings.participation,
        folder=folder,
        resume=resume,
        callbacks=callbacks,
        about_data=to_plain(settings.data),
        origin=origin,
    )


def compare(
    settings: Settings,
    contestants: Sequence[Contestant],
    seeds: Sequence[int],
    equal: Equal,
    folder: Path,
    progress: Callable[[str, int], Sequence[Callback]],
) -> dict[str, Any]:
    """Train every contestant with every seed and put the results side by side.

    With the same seed all contestants see the same nodes, splits and initial weights, so their
    differences are paired. A run that diverges counts as one: its metric is that of the model
    without adaptation (the initial one if training diverged), which is what a device is left with.

    Args:
        settings: data, model, training and execution; its algorithm is not used.
        contestants: algorithms with their labels; differences are taken from the first.
        seeds: one repeat each: own partition, own initial weights.
        equal: "rounds", or "gradients": others run as many rounds as cost the same number of
            gradient evaluations as the first.
        folder: where runs and comparison.json go.
        progress: given a label and a seed, the callbacks of that run.
    """
    labels = [contestant.label for contestant in contestants]
    require(len(seeds) > 0, "seeds", len(seeds), "at least one")
    if len(set(labels)) < len(labels) or not labels:
        raise SettingError(f"the algorithms are {labels}", "name each one once, at least one")
    if (folder / FILE).exists():
        raise RunFolderError(f"{folder} holds a comparison already", "choose another --out")
    if (folder / "settings.json").exists() or (folder / "runs").exists():
        raise RunFolderError(
            f"{folder} holds runs already", "choose another --out, or delete that folder"
        )
    rows: dict[str, dict[str, Any]] = {}
    for seed in seeds:
        federation = load(settings.data, seed)
        if not federation.targets:
            raise SettingError("there are no target nodes to compare on", "raise target_share")
        for contestant in contestants:
            rounds = _rounds(settings, contestants[0].algorithm, contestant, equal, federation)
            one = replace(
                settings,
                algorithm=contestant.algorithm,
                training=replace(settings.training, seed=seed, rounds=rounds),
            )
            place = f"runs/{contestant.label}-seed{seed}".replace(":", "-").replace("=", "-")
            result = _one(one, federation, folder / place, progress(contestant.label, seed))
            row = rows.setdefault(
                contestant.label,
                {"label": contestant.label, "algorithm": contestant.algorithm.name},
            )
            for key, value in {**result, "runs": place}.items():
                row.setdefault(key, []).append(value)
    first = rows[labels[0]]
    comparison = {
        "format": FORMAT,
        "metric": first["metric"][0],
        "equal": equal,
        "data": to_plain(settings.data),
        "seeds": list(seeds),
        "rows": [_row(row) for row in rows.values()],
        "paired": [_paired(first, rows[label]) for label in labels[1:]],
    }
    write_json(folder / FILE, comparison)
    return comparison


def _rounds(
    settings: Settings,
    first: Algorithm,
    contestant: Contestant,
    equal: Equal,
    federation: Federation,
) -> int:
    rounds = settings.training.rounds
    cost = gradient_evaluations(contestant.algorithm.passes, federation)
    if equal == "rounds" or cost == 0:
        return rounds
    return max(1, round(rounds * gradient_evaluations(first.passes, federation) / cost))


def _one(
    settings: Settings, federation: Federation, folder: Path, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    diverged = False
    try:
        run = train_settings(settings, federation, folder=folder, callbacks=callbacks)
    except DivergedError:
        diverged = True
        # What is left is the initial model as it is: nothing that could diverge again.
        training = replace(settings.training, rounds=0, evaluation_steps=(0,))
        still = FedAvg(inner=Adaptation(steps=0))
        run = train_settings(replace(settings, training=training, algorithm=still), federation)
    summary = run.summary
    reached = summary["target_metric"][str(summary["adaptation_steps"])]["mean"]
    diverged = diverged or reached is None  # adaptation itself may blow up
    before = summary["target_metric"]["0"]["mean"]
    return {
        "metric": summary["metric"],
        "values": before if diverged else reached,
        "before": before,
        "rounds": settings.training.rounds,
        "adaptation_steps": summary["adaptation_steps"],
        "gradient_evaluations": summary["gradient_evaluations"],
        "bytes_per_node": summary["bytes_per_node"],
        "seconds": summary["seconds"],
        "diverged": int(diverged),
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    mean, half_width = interval(row["values"])
    return {
        "label": row["label"],
        "algorithm": row["algorithm"],
        "rounds": row["rounds"][0],
        "adaptation_steps": max(row["adaptation_steps"]),  # a diverged run has none
        "values": row["values"],
        "before": row["before"],
        "mean": mean,
        "ci95": half_width,
        "before_mean": interval(row["before"]).mean,
        "n": len(row["values"]),
        "diverged": sum(row["diverged"]),
        "gradient_evaluations": interval(row["gradient_evaluations"]).mean,
        "bytes_per_node": interval(row["bytes_per_node"]).mean,
        "seconds": interval(row["seconds"]).mean,
        "runs": row["runs"],
    }


def _paired(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    mean, half_width = interval(
        [a - b for a, b in zip(first["values"], other["values"], strict=True)]
    )
    return {"against": other["label"], "mean": mean, "ci95": half_width}
