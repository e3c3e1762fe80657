"""What lost and hostile edges, privacy and short uploads cost: simulated, written to results/fleet.

    python -m benchmarks.fleet_simulation run --data digits
    python -m benchmarks.fleet_simulation run --data fashion-mnist --folder DATA --device cuda
    python -m benchmarks.fleet_simulation render

A case that has a result with the same settings is not run again. Needs the core alone (and for
digits scikit-learn).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.data import DataSettings, load
from fedmeta.data.federation import Federation
from fedmeta.engines.execution import Execution
from fedmeta.errors import DivergedError
from fedmeta.experiments.page import between
from fedmeta.fleet.compression import Compression
from fedmeta.fleet.guard import Guard
from fedmeta.fleet.privacy import Privacy
from fedmeta.fleet.simulation import Attack, EdgeLoss, EdgeUplink, with_flipped_labels
from fedmeta.fleet.uplink import Uplink
from fedmeta.intervals import interval
from fedmeta.job import TrainingSettings
from fedmeta.models import ModelSettings
from fedmeta.participation import Participation
from fedmeta.plain import to_plain
from fedmeta.run_folder import versions
from fedmeta.storage import read_json, write_bytes, write_json
from fedmeta.training import train

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "fleet", ROOT / "docs" / "explanation" / "robust-fleets.md"
EDGES, NODES, SEEDS, ROUNDS = 10, 50, 10, 100
SOURCES = NODES * 4 // 5
_LOSSES = (("30 % of 10 edges", 10), ("30 % of 40 edges", SOURCES))
_ATTACKS = {
    "sign flip × 1": Attack("sign", 1.0),
    "sign flip × 10": Attack("sign", 10.0),
    "sign flip × 100": Attack("sign", 100.0),
    "noise of equal norm": Attack("noise", 1.0),
    "flipped labels": None,
}
_GUARDS = {"reject": Guard("reject"), "clip": Guard("clip"), "no guard": Guard()}
_UPLOADS = {"8 bits": Compression("8-bit"), "5 % of the numbers": Compression("top-k", 0.05)}

_DEFAULT = ADMMFedMeta()


@dataclass(frozen=True)
class Case:
    """One line of a table.

    Args:
        group: the table it belongs to.
        name: of the line.
        settings: what differs from the ordinary run, as `train` takes it.
        algorithm: what is trained.
        data: changes to the data settings.
        rounds: T.
        flips: the first edge has flipped labels.
        baseline: name of the case in the same group that it is compared with.
    """

    group: str
    name: str
    settings: Mapping[str, Any]
    algorithm: ADMMFedMeta = _DEFAULT
    data: Mapping[str, Any] | None = None
    rounds: int = ROUNDS
    flips: bool = False
    baseline: str | None = None


def cases(data: str) -> list[Case]:
    """All cases of a data set."""
    found = [Case("lost", "none", {})]
    for name, edges in _LOSSES:
        loss = EdgeLoss(lost=0.3, edges=edges)
        found.append(Case("lost", name, {"participation": loss}, baseline="none"))
    for kind, guard in _GUARDS.items():
        for name, attack in {"honest": Attack(), **_ATTACKS}.items():
            uplink = EdgeUplink(guard, edges=EDGES, nodes=SOURCES, attack=attack or Attack())
            line = f"{name}, {kind}"
            baseline = None if line == "honest, no guard" else "honest, no guard"
            flips = attack is None
            found.append(Case("hostile", line, {"uplink": uplink}, flips=flips, baseline=baseline))
    found.append(Case("uploads", "32 bits", {}))
    for name, shorter in _UPLOADS.items():
        found.append(
            Case("uploads", name, {"uplink": Uplink(compression=shorter)}, baseline="32 bits")
        )
    return found + _private(data)


def _private(data: str) -> list[Case]:
    """Both kinds of privacy at ε = ∞, 8, 2, on as many nodes as the data allow."""
    large = data != "digits"
    changes = {"nodes": 600, "samples": (12, 24)} if large else {}
    algorithm = ADMMFedMeta(penalty=_PENALTY[data], penalty_unit="weight")
    rounds, found = 50, [Case("privacy", "untrained", {}, algorithm, changes, 0)]
    drawn = Participation(fraction=0.1 if large else 1.0, independent=large)
    for dp in ("central", "local"):
        for epsilon in (None, 8.0, 2.0):
            noise = 0.0 if epsilon is None else None
            privacy = Privacy(dp, epsilon, clip=_CLIP[data], noise=noise)
            who = drawn if dp == "central" else Participation()
            settings = {"uplink": Uplink(privacy=privacy), "participation": who}
            name = f"{dp}, ε = {'∞' if epsilon is None else f'{epsilon:g}'}"
            base = None if epsilon is None else f"{dp}, ε = ∞"
            found.append(Case("privacy", name, settings, algorithm, changes, rounds, baseline=base))
    return found


_PENALTY = {"digits": 1.0, "fashion-mnist": 1.0}
_CLIP = {"digits": 1.0, "fashion-mnist": 1.0}


def measured(case: Case, seed: int, data: DataSettings, execution: Execution) -> dict[str, Any]:
    """Accuracy of the targets after one step, with one seed."""
    settings = replace(data, **case.data) if case.data else data
    federation: Federation = load(settings, seed)
    if case.flips:
        federation = with_flipped_labels(federation, EDGES)
    training = TrainingSettings(rounds=case.rounds, seed=seed, evaluate_every=0)
    model = ModelSettings("linear" if case.group == "privacy" else "auto")
    execution = replace(execution, chunk=len(federation.sources))
    try:
        run = train(
            federation, model, case.algorithm, training, execution=execution, **case.settings
        )
    except DivergedError:
        return {"accuracy": None, "bytes_up": None, "refused": None}
    best = run.summary["precise_metric"] or run.summary["target_metric"]
    last = run.history[-1] if run.history else {}
    refused = [record.get("refused", 0.0) for record in run.history]
    return {
        "accuracy": best["1"]["mean"],
        "bytes_up": last.get("bytes_up"),
        "refused": sum(refused) / max(1, len(refused)),
        "promise": run.summary["settings"].get("uplink", {}).get("promise"),
    }


def run(
    name: str, folder: str | None, device: str, seeds: int, only: str, say: Callable[[str], None]
) -> None:
    """Run what has no result yet, and keep each result as it comes."""
    data = DataSettings(name, folder=folder, nodes=NODES, precise=100)
    execution = Execution(device=device, path="batched", threads=1 if device == "cpu" else None)
    for case in cases(name):
        if only not in case.group:
            continue
        file = RESULTS / f"{name}-{case.group}.json"
        kept: dict[str, Any] = {"data": name, "group": case.group, "cases": {}}
        if file.exists():
            kept = read_json(file, "results")
        about = {
            "settings": to_plain(dict(case.settings)),
            "algorithm": to_plain(case.algorithm),
            "data": {k: v for k, v in to_plain(data).items() if k != "folder"}
            | (to_plain(case.data) or {}),
            "rounds": case.rounds,
            "seeds": seeds,
        }
        key = case.name
        if kept["cases"].get(key, {}).get("about") == about:
            continue
        rows = [measured(case, seed, data, execution) for seed in range(seeds)]
        kept["cases"][key] = {
            "about": about,
            "baseline": case.baseline,
            "accuracy": [row["accuracy"] for row in rows],
            "bytes_up": rows[0]["bytes_up"],
            "refused": [row["refused"] for row in rows],
            "promise": rows[0].get("promise"),
            "versions": versions(),
            "date": datetime.now(UTC).date().isoformat(),
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, kept)
        say(f"{case.group}, {key}: {_percent(rows_of(kept, key))}")


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("run", "render"))
    parser.add_argument("--data", default="digits", choices=sorted(_PENALTY))
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="a group: lost, hostile, uploads or privacy")
    given = parser.parse_args()
    if given.what == "run":

        def say(line: str) -> None:
            print(line, flush=True)

        run(given.data, given.folder, given.device, given.seeds, given.only, say)
    else:
        write_bytes(PAGE, rendered(PAGE.read_text(encoding="utf-8"), RESULTS).encode())


if __name__ == "__main__":
    main()
