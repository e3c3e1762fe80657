"""What lost and hostile edges, privacy and short uploads cost: simulated, written to results/fleet.

    python -m benchmarks.fleet_simulation run --data digits
    python -m benchmarks.fleet_simulation run --data fashion-mnist --folder DATA --device cuda
    python -m benchmarks.fleet_simulation render

A case that has a result with the same settings is not run again; its seeds are trained together
where that is possible. Needs the core alone (for digits scikit-learn, for privacy the extra dp).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import torch

from benchmarks.fleet_cases import (
    EDGES,
    GROUPS,
    NODES,
    POPULATIONS,
    RESULTS,
    SOURCES,
    Case,
    cases,
)
from benchmarks.simulated_edges import with_flipped_labels
from experiments.page import between
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import FedmetaError
from fedmeta.core.serialization import serialize
from fedmeta.core.storage import read_json, write_bytes, write_json
from fedmeta.core.versions import versions
from fedmeta.data import DataSettings, load
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.federation import Federation
from fedmeta.evaluation.intervals import interval
from fedmeta.models.networks import ModelSettings
from fedmeta.training.many import train_many
from fedmeta.training.run import Run
from fedmeta.training.train import RunRequest
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "robust-fleets.md"
SEEDS = 10

Reader = Callable[[DataSettings, int], Federation]


def measured(
    case: Case, seeds: Sequence[int], data: DataSettings, execution: Execution, read: Reader
) -> dict[str, Any]:
    """Accuracy of the targets after one step, with every seed; None where a run diverged."""
    settings = replace(data, **case.data) if case.data else data
    repeats = []
    for seed in seeds:
        federation = read(settings, seed)
        if case.flips:
            federation = with_flipped_labels(federation, EDGES)
        one = RunSpec(
            settings,
            ModelSettings("linear" if case.group == "privacy" else "auto"),
            case.algorithm,
            TrainingSettings(rounds=case.rounds, seed=seed, evaluate_every=0),
            replace(execution, chunk=len(federation.sources)),
            case.settings.get("participation", Participation()),
            Augmentation(),
            loss="auto",
            uplink=case.settings.get("uplink", Uplink()),
        )
        repeats.append(RunRequest(one, federation))
    runs = train_many(repeats)
    ended = [run for run in runs if isinstance(run, Run)]
    last = ended[0].history[-1] if ended and ended[0].history else {}
    uplink = ended[0].summary["settings"].get("uplink", {}) if ended else {}
    return {
        "accuracy": [_accuracy(run) if isinstance(run, Run) else None for run in runs],
        "bytes_up": last.get("bytes_up"),
        "refused": [_refused(run) if isinstance(run, Run) else None for run in runs],
        "promise": uplink.get("promise"),
    }


def _accuracy(run: Run) -> float:
    best = run.summary["precise_metric"] or run.summary["target_metric"]
    return float(best["1"]["mean"])


def _refused(run: Run) -> float:
    """Nodes that were refused in a round, on average."""
    refused = [record.get("refused", 0.0) for record in run.history]
    return float(sum(refused)) / max(1, len(refused))


def run(
    name: str,
    groups: Collection[str],
    *,
    folder: str | None,
    device: str,
    seeds: int,
    results: Path,
    seconds: float,
    say: Callable[[str], None],
) -> bool:
    """Run cases that have no result yet, and keep each result as it comes.

    Returns:
        Whether all of them have one now; no case is begun after so many seconds.
    """
    data = DataSettings(name, folder=folder, nodes=NODES, precise=100)
    execution = Execution(device=device, path="batched", threads=1 if device == "cpu" else None)
    read = lru_cache(maxsize=seeds)(load)
    started, everything = time.monotonic(), cases(name)
    for case in everything:
        if case.group not in groups:
            continue
        file = results / f"{name}-{case.group}.json"
        kept: dict[str, Any] = {"data": name, "group": case.group, "cases": {}}
        if file.exists():
            kept = read_json(file, "results")
        about = {
            "settings": serialize(dict(case.settings)),
            "algorithm": serialize(case.algorithm),
            "data": {k: v for k, v in serialize(data).items() if k != "folder"}
            | (serialize(case.data) or {}),
            "rounds": case.rounds,
            "seeds": seeds,
        }
        if kept["cases"].get(case.name, {}).get("about") == about:
            continue
        began = time.monotonic()
        if began - started > seconds:
            return False
        kept["cases"][case.name] = {
            "about": about,
            "baseline": case.baseline,
            **measured(case, range(seeds), data, execution, read),
            "versions": versions(),
            "date": datetime.now(UTC).date().isoformat(),
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
        }
        # In the order of the table, and without cases that are no more.
        order = [each.name for each in everything if each.group == case.group]
        kept["cases"] = {name: kept["cases"][name] for name in order if name in kept["cases"]}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, kept)
        took = time.monotonic() - began
        say(f"{case.group}, {case.name}: {_percent(rows_of(kept, case.name))} ({took:.0f} s)")
    return True


def rows_of(kept: Mapping[str, Any], key: str) -> list[float]:
    """Accuracies of a case; a diverged run counts as 0."""
    return [value or 0.0 for value in kept["cases"][key]["accuracy"]]


def _percent(values: list[float], sign: bool = False) -> str:
    mean, half = interval(values)
    shown = f"{100 * mean:+.1f}" if sign else f"{100 * mean:.1f}"
    return shown if half is None else f"{shown} ± {100 * half:.1f}"


def tables(folder: Path) -> dict[str, str]:
    """The tables of the page, by marker."""
    groups: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        kept = read_json(path, "results")
        for name, case in kept["cases"].items():
            mine, against = rows_of(kept, name), "–"
            if case["baseline"] is not None:
                pairs = zip(mine, rows_of(kept, case["baseline"]), strict=True)
                against = _percent([one - other for one, other in pairs], sign=True)
            cells = [kept["data"], name, _percent(mine), against, *_further(kept["group"], case)]
            groups.setdefault(kept["group"], []).append(f"| {' | '.join(cells)} |")
    extra = {"uploads": ["bytes up"], "hostile": ["edges refused a round"]}
    return {name: _table(name, rows, extra.get(name, [])) for name, rows in groups.items()}


def _further(group: str, case: Mapping[str, Any]) -> list[str]:
    """What a table has beyond accuracies."""
    if group == "uploads":
        return [f"{case['bytes_up']:,.0f}"]
    if group == "hostile":
        known = [each for each in case["refused"] if each is not None]
        return [f"{sum(known) / max(1, len(known)) * EDGES / SOURCES:.2f}"]
    return []


def _table(name: str, rows: list[str], extra: list[str]) -> str:
    first = {"lost": "lost", "hostile": "first edge, guard", "privacy": "privacy"}.get(name, name)
    columns = ["data", first, "accuracy, %", "difference, points", *extra]
    head = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    return "\n".join([*head, *rows])


def rendered(text: str, folder: Path) -> str:
    """The page with its tables as the results have them."""
    for name, table in tables(folder).items():
        text = between(text, name, table)
    return text


def main() -> int:
    """The command line; status 3: cases are left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("run", "render"))
    parser.add_argument("--data", default="digits", choices=sorted(POPULATIONS))
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", nargs="+", default=GROUPS, choices=GROUPS, help="some tables")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder they are kept in")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no case after that long")
    given = parser.parse_args()
    if given.what == "render":
        text = rendered(PAGE.read_text(encoding="utf-8"), given.results)
        write_bytes(PAGE, text.encode())
        return 0

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        done = run(
            given.data,
            given.only,
            folder=given.folder,
            device=given.device,
            seeds=given.seeds,
            results=given.results,
            seconds=given.seconds,
            say=say,
        )
    except FedmetaError as error:
        say(str(error))
        return 2
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
