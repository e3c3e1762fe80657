"""Several algorithms on the same footing: same seeds, same splits, equal rounds or equal work."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedmeta.algorithms import FedAvg
from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.config.settings import Settings, merged
from fedmeta.core.errors import DivergedError, RunFolderError, SettingError, require
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import to_plain
from fedmeta.core.storage import write_json
from fedmeta.data import load
from fedmeta.data.federation import Federation
from fedmeta.evaluation.intervals import interval
from fedmeta.priors import PriorSettings
from fedmeta.training.from_settings import train_settings
from fedmeta.training.job import Job
from fedmeta.training.loop import Callback, Run, gradient_evaluations
from fedmeta.training.repeats import Repeat, jobs_together
from fedmeta.training.together import train_together

FORMAT = 1
FILE = "comparison.json"
Equal = Literal["rounds", "gradients"]


@dataclass(frozen=True)
class Contestant:
    """An algorithm in a comparison, and how people call it there.

    Args:
        label: its name in tables.
        algorithm: with its hyper-parameters.
        table: the settings table it was built from, stored with its runs for resuming them.
    """

    label: str
    algorithm: Algorithm
    table: Mapping[str, Any] = field(default_factory=dict)


def compare(
    settings: Settings,
    contestants: Sequence[Contestant],
    seeds: Sequence[int],
    equal: Equal,
    folder: Path,
    progress: Callable[[str], Sequence[Callback]],
) -> dict[str, Any]:
    """Train every contestant with every seed and put the results side by side.

    With the same seed all contestants see the same nodes, splits and initial weights, so their
    differences are paired. A run that diverges counts as one: its metric is that of the model
    without adaptation (the initial one if training diverged), which is what a device is left with,
    and its cost is what it spent until then.

    Where targets have precise sets, rows and paired differences have an entry `precise` with the
    same figures on them.

    Args:
        settings: data, model, training and execution; its algorithm is not used.
        contestants: algorithms with their labels; differences are taken from the first.
        seeds: one repeat each: own partition, own initial weights.
        equal: "rounds", or "gradients": others run as many rounds as cost the same number of
            gradient evaluations as the first.
        folder: where runs and comparison.json go.
        progress: given what is trained, the callbacks of that run (or of all seeds at once).
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
    names = folder_names(labels)
    rows: dict[str, dict[str, Any]] = {}
    federations = [load(settings.data, seed) for seed in seeds]
    if not all(federation.targets for federation in federations):
        raise SettingError("there are no target nodes to compare on", "raise target_share")
    for contestant in contestants:
        row: dict[str, Any] = {"label": contestant.label, "algorithm": contestant.algorithm.name}
        rows[contestant.label] = row
        tasks = []
        for seed, federation in zip(seeds, federations, strict=True):
            rounds = _rounds(settings, contestants[0].algorithm, contestant, equal, federation)
            tied = getattr(contestant.algorithm, "prior", None) is not None
            one = replace(
                settings,
                algorithm=contestant.algorithm,
                prior=settings.prior if tied else PriorSettings(),
                training=replace(settings.training, seed=seed, rounds=rounds),
            )
            now = {"training": {"seed": seed, "rounds": rounds}}
            origin = {"table": merged([contestant.table, now])} if contestant.table else {}
            place = f"runs/{names[contestant.label]}-seed{seed}"
            tasks.append(_Task(one, federation, folder / place, origin))
        for task, summary in zip(tasks, _trained(tasks, contestant.label, progress), strict=True):
            place = str(task.folder.relative_to(folder))
            for key, value in {**_figures(task, summary), "runs": place}.items():
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


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """A folder name for every label that stays in its parent, and is like no other.

    Example:
        >>> list(folder_names(["fedavg:local_steps=5", "../my.py:Own", "my.py=Own"]).values())
        ['fedavg-local_steps-5', 'my.py-Own', 'my.py-Own-2']
    """
    names: dict[str, str] = {}
    for label in labels:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip(".-") or "algorithm"
        number = 2
        while name in names.values():
            name, number = f"{name}-{number}", number + 1
        names[label] = name
    return names


def _rounds(
    settings: Settings,
    first: Algorithm,
    contestant: Contestant,
    equal: Equal,
    federation: Federation,
) -> int:
    rounds = settings.training.rounds
    cost = gradient_evaluations(contestant.algorithm, federation)
    if equal == "rounds" or cost == 0:
        return rounds
    return max(1, round(rounds * gradient_evaluations(first, federation) / cost))


@dataclass(frozen=True, eq=False)
class _Task:
    """One run of a comparison."""

    settings: Settings
    federation: Federation
    folder: Path
    origin: Mapping[str, Any]


def _trained(
    tasks: Sequence[_Task], label: str, progress: Callable[[str], Sequence[Callback]]
) -> list[Mapping[str, Any]]:
    """The summaries of all seeds, trained together where that is faster and possible."""
    if (jobs := _jobs(tasks)) is not None:
        folders = [task.folder for task in tasks]
        origins = [task.origin for task in tasks]
        callbacks = progress(f"{label} × {len(tasks)} seeds")
        outcomes = train_together(jobs, folders=folders, origins=origins, callbacks=callbacks)
        return [
            outcome.summary if isinstance(outcome, Run) else RunFolder.open(task.folder).summary()
            for task, outcome in zip(tasks, outcomes, strict=True)
        ]
    summaries: list[Mapping[str, Any]] = []
    for task in tasks:
        try:
            run = train_settings(
                task.settings,
                task.federation,
                folder=task.folder,
                callbacks=progress(f"{label} seed {task.settings.training.seed}"),
                origin=task.origin,
            )
            summaries.append(run.summary)
        except DivergedError:
            summaries.append(RunFolder.open(task.folder).summary())
    return summaries


def _jobs(tasks: Sequence[_Task]) -> list[Job] | None:
    """All seeds as jobs to train together, or None where one after the other is the way."""
    prior = tasks[0].settings.prior
    if prior.ties and prior.strength == "auto":  # a λ for each
        return None
    return jobs_together([Repeat(task.settings, task.federation) for task in tasks])


def _figures(task: _Task, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a comparison takes from a run."""
    steps = str(summary["adaptation_steps"])
    diverged = summary["status"] == "diverged"
    left = summary
    if summary["target_metric"].get("0", {}).get("mean") is None:
        # Training itself diverged: what is left is the initial model.
        left = _untrained(task.settings, task.federation)
    figures: dict[str, Any] = {}
    for prefix, table in (("", "target_metric"), ("precise_", "precise_metric")):
        if left[table]:
            before = left[table]["0"]["mean"]
            figures[f"{prefix}values"] = before if diverged else summary[table][steps]["mean"]
            figures[f"{prefix}before"] = before
    return {
        **figures,
        "metric": summary["metric"],
        "rounds": task.settings.training.rounds,
        "adaptation_steps": summary["adaptation_steps"],
        "gradient_evaluations": summary["gradient_evaluations"],
        "bytes_per_node": summary["bytes_per_node"],
        "seconds": summary["seconds"],
        "diverged": int(diverged),
    }


def _untrained(settings: Settings, federation: Federation) -> Mapping[str, Any]:
    """The summary of the initial model as it is, without any step that could diverge again."""
    training = replace(settings.training, rounds=0, evaluation_steps=(0,))
    still = FedAvg(inner=Adaptation(steps=0))
    return train_settings(replace(settings, training=training, algorithm=still), federation).summary


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    precise = "precise_values" in row
    return {
        "label": row["label"],
        "algorithm": row["algorithm"],
        "rounds": row["rounds"][0],
        "adaptation_steps": max(row["adaptation_steps"]),  # a diverged run has none
        **_reached(row["values"], row["before"]),
        **({"precise": _reached(row["precise_values"], row["precise_before"])} if precise else {}),
        "n": len(row["values"]),
        "diverged": sum(row["diverged"]),
        "gradient_evaluations": interval(row["gradient_evaluations"]).mean,
        "bytes_per_node": interval(row["bytes_per_node"]).mean,
        "seconds": interval(row["seconds"]).mean,
        "runs": row["runs"],
    }


def _reached(values: Sequence[float], before: Sequence[float]) -> dict[str, Any]:
    mean, half_width = interval(values)
    return {
        "values": values,
        "before": before,
        "mean": mean,
        "ci95": half_width,
        "before_mean": interval(before).mean,
    }


def _paired(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    def difference(name: str) -> dict[str, Any]:
        pairs = zip(first[name], other[name], strict=True)
        mean, half_width = interval([a - b for a, b in pairs])
        return {"mean": mean, "ci95": half_width}

    precise = {"precise": difference("precise_values")} if "precise_values" in first else {}
    return {"against": other["label"], **difference("values"), **precise}
