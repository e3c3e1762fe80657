"""Several algorithms on the same footing: same seeds, same splits, equal rounds or equal work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedmeta.algorithms import FedAvg
from fedmeta.algorithms.algorithm import Algorithm, takes_prior
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import RunFolderError, SettingError, require, require_choice
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder, parsing
from fedmeta.core.serialization import serialize
from fedmeta.core.storage import seal, unseal, write_json
from fedmeta.data import load
from fedmeta.data.federation import Federation
from fedmeta.evaluation.intervals import FEWEST, interval
from fedmeta.evaluation.metrics import OwnMetric, own_name
from fedmeta.priors import PriorSettings
from fedmeta.studies.comparison import Comparison
from fedmeta.studies.fair_steps import steps_found, with_automatic_steps
from fedmeta.training.ending import gradient_evaluations
from fedmeta.training.many import train_many
from fedmeta.training.progress import Progress, bars
from fedmeta.training.start import scaling_of
from fedmeta.training.train import RunRequest, train_run

FORMAT = 1
FILE = "comparison.json"
Equal = Literal["rounds", "gradients"]
_BOTH = ("value", "before")


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

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """What the table says of this algorithm alone."""
        name = self.table.get("algorithm", self.algorithm.name)
        own: Mapping[str, Any] = self.table.get("algorithms", {}).get(name, {})
        return own


def compare(
    settings: RunSpec,
    algorithms: Sequence[Contestant | Algorithm],
    seeds: Sequence[int] = range(3),
    equal: Equal = "rounds",
    folder: Path | str = "runs/comparison",
    progress: Progress = None,
    *,
    steps: Literal["own", "automatic"] = "own",
    resume: bool = False,
    metric: OwnMetric | None = None,
) -> Comparison:
    """Train every contestant with every seed and put the results side by side.

    With the same seed all contestants see the same nodes, splits and initial weights, so their
    differences are paired. A run that diverges counts as one: its metric is that of the model
    without adaptation (the initial one if training diverged), which is what a device is left with,
    and its cost is what it spent until then.

    The table shows the metric that the settings name (`training.metric`), or one of your own, else
    accuracy or mean squared error; rows and paired differences have all of them under `metrics`.

    Where targets have precise sets, rows and paired differences have an entry `precise` with the
    same figures on them.

    Args:
        settings: data, model, training and execution; its algorithm is not used.
        algorithms: perhaps with labels of their own; differences are taken from the first.
        seeds: one repeat each: own partition, own initial weights.
        equal: "rounds", or "gradients": others run as many rounds as cost the same number of
            gradient evaluations as the first.
        folder: where runs and comparison.json go.
        progress: whether to show a bar; None: where a person watches. Or a function: given what is
            trained, the callbacks of that run (or of all seeds at once).
        steps: "automatic" gives algorithms whose steps nobody has chosen those of the default.
        resume: go on with the comparison in the folder: runs that have ended are kept.
        metric: of your own: a function (labels, outputs) → number of one node; more is better.
    """
    folder = Path(folder)
    require_choice("steps", steps, ("own", "automatic"))
    contestants = [
        each if isinstance(each, Contestant) else Contestant(each.name, each) for each in algorithms
    ]
    if steps == "automatic":
        contestants = [
            replace(each, algorithm=with_automatic_steps(each.algorithm, each.own_settings))
            for each in contestants
        ]
    labels = [contestant.label for contestant in contestants]
    require(len(seeds) > 0, "seeds", len(seeds), "at least one")
    if len(set(labels)) < len(labels) or not labels:
        raise SettingError(f"the algorithms are {labels}", "name each one once, at least one")
    if not resume and (folder / FILE).exists():
        raise RunFolderError(f"{folder} holds a comparison already", "choose another --out")
    if not resume and ((folder / "settings.json").exists() or (folder / "runs").exists()):
        raise RunFolderError(
            f"{folder} holds runs already", "continue it with --resume, or choose another --out"
        )
    names = folder_names(labels)
    rows: dict[str, dict[str, Any]] = {}
    federations = [load(settings.data_settings, seed) for seed in seeds]
    if not all(federation.targets for federation in federations):
        raise SettingError("there are no target nodes to compare on", "raise target_share")
    for contestant in contestants:
        row: dict[str, Any] = {
            "label": contestant.label,
            "algorithm": contestant.algorithm.name,
            "steps": steps_found(contestant.algorithm, contestant.own_settings),
        }
        rows[contestant.label] = row
        requests = []
        for seed, federation in zip(seeds, federations, strict=True):
            rounds = _rounds(settings, contestants[0].algorithm, contestant, equal, federation)
            one = replace(
                settings.replaced(seed=seed, rounds=rounds),
                algorithm=contestant.algorithm,
                importance="none",
                prior=settings.prior if takes_prior(contestant.algorithm) else PriorSettings(),
            )
            now = {"training": {"seed": seed, "rounds": rounds}}
            origin = {"table": merged([contestant.table, now])} if contestant.table else {}
            place = folder / f"runs/{names[contestant.label]}-seed{seed}"
            own = () if metric is None else (metric,)
            requests.append(RunRequest(one, federation, None, place, origin, metrics=own))
        title = f"{contestant.label} × {len(requests)} seeds"
        train_many(requests, bars(progress)(title), resume=resume)
        for request in requests:
            assert request.folder is not None
            summary = RunFolder.open(request.folder).summary()
            with parsing(request.folder, "summary.json"):
                figures = _figures(request, summary)
            place = request.folder.relative_to(folder)
            for key, value in {**figures, "runs": str(place)}.items():
                row.setdefault(key, []).append(value)
    first = rows[labels[0]]
    shown = settings.training.metric if metric is None else own_name(metric)
    found = {
        "format": FORMAT,
        "metric": first["metric"][0],
        "shown": shown or first["metric"][0],
        "equal": equal,
        "data": serialize(settings.data),
        "seeds": list(seeds),
        "rows": [_row(row) for row in rows.values()],
        "paired": [_paired(first, rows[label]) for label in labels[1:]],
    }
    unseal(folder)
    write_json(folder / FILE, found)
    seal(folder)
    return Comparison(found)


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
    settings: RunSpec,
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


def _figures(request: RunRequest, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a comparison takes from a run."""
    steps = str(summary["adaptation_steps"])
    diverged = summary["status"] == "diverged"
    left = summary
    if summary["target_metric"].get("0", {}).get("mean") is None:
        # Training itself diverged: what is left is the initial model.
        left = _untrained(request)
    figures: dict[str, Any] = {}
    for prefix, table in (("", "target_metric"), ("precise_", "precise_metric")):
        if left[table]:
            before = left[table]["0"]["mean"]
            figures[f"{prefix}values"] = before if diverged else summary[table][steps]["mean"]
            figures[f"{prefix}before"] = before
    measured = {}
    for name, by_steps in summary["metrics"].items():
        before = left["metrics"].get(name, {}).get("0", {}).get("mean")
        reached = before if diverged else by_steps.get(steps, {}).get("mean")
        measured[name] = {"value": reached, "before": before}
    return {
        **figures,
        "measured": measured,
        "metric": summary["metric"],
        "rounds": request.spec.training.rounds,
        "adaptation_steps": summary["adaptation_steps"],
        "gradient_evaluations": summary["gradient_evaluations"],
        "bytes_per_node": summary["bytes_per_node"],
        "seconds": summary["seconds"],
        "diverged": int(diverged),
    }


def _untrained(request: RunRequest) -> Mapping[str, Any]:
    """The summary of the initial model as it is, without any step that could diverge again."""
    still = replace(
        request.spec, algorithm=FedAvg(inner=Adaptation(steps=0)), prior=PriorSettings()
    )
    spec = still.replaced(rounds=0, evaluation_steps=(0,))
    scaling = scaling_of(request.spec, request.federation)
    return train_run(RunRequest(spec, request.federation, scaling)).summary


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    precise = "precise_values" in row
    return {
        "label": row["label"],
        "algorithm": row["algorithm"],
        "steps": row["steps"],
        "rounds": row["rounds"][0],
        "adaptation_steps": max(row["adaptation_steps"]),  # a diverged run has none
        **_reached(row["values"], row["before"]),
        **({"precise": _reached(row["precise_values"], row["precise_before"])} if precise else {}),
        "metrics": _measured(row["measured"]),
        "n": len(row["values"]),
        "diverged": sum(row["diverged"]),
        "gradient_evaluations": interval(row["gradient_evaluations"]).mean,
        "bytes_per_node": interval(row["bytes_per_node"]).mean,
        "seconds": interval(row["seconds"]).mean,
        "runs": row["runs"],
    }


def _measured(seeds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Every metric over the seeds; one that a seed could not tell has no mean."""
    found = {}
    for name in seeds[0]:
        values: Any
        before: Any
        values, before = ([each.get(name, {}).get(key) for each in seeds] for key in _BOTH)
        judged = interval(values, FEWEST) if None not in values else None
        found[name] = {
            "values": values,
            "mean": judged and judged.mean,
            "ci95": judged and judged.half_width,
            "before_mean": interval(before).mean if None not in before else None,
        }
    return found


def _reached(values: Sequence[float], before: Sequence[float]) -> dict[str, Any]:
    mean, half_width = interval(values, FEWEST)
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
        mean, half_width = interval([a - b for a, b in pairs], FEWEST)
        return {"mean": mean, "ci95": half_width}

    precise = {"precise": difference("precise_values")} if "precise_values" in first else {}
    mine, theirs = _measured(first["measured"]), _measured(other["measured"])
    metrics = {}
    for name in [each for each in mine if each in theirs]:
        pairs = list(zip(mine[name]["values"], theirs[name]["values"], strict=True))
        known = all(None not in pair for pair in pairs)
        mean, half_width = interval([a - b for a, b in pairs], FEWEST) if known else (None, None)
        metrics[name] = {"mean": mean, "ci95": half_width}
    return {"against": other["label"], **difference("values"), **precise, "metrics": metrics}
