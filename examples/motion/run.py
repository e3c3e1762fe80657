"""Motion sensors of 30 people: tune on source people, train with ten seeds, judge on five others.

python examples/motion/run.py --data hapt_windows.npz [--device cuda]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from methods import HELD_OUT, accuracies, candidates, fitted, method, tried
from people import QUERY, SUPPORT, TARGETS, load_people

from fedmeta import interval, versions
from fedmeta.contract import Algorithm

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="hapt_windows.npz, see README.md")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", type=int, default=10, help="how many [10]")
    parser.add_argument("--rounds", type=int, default=100, help="of every training [100]")
    parser.add_argument("--repeats", type=int, default=2, help="of every trial of tuning [2]")
    parser.add_argument("--out", type=Path, default=ROOT / "results/motion.json")
    given = parser.parse_args()
    protocol = {
        "targets": list(TARGETS),
        "support": SUPPORT,
        "query_of_sources": QUERY,
        "rounds": given.rounds,
        "tuning": {"held_out": HELD_OUT, "repeats": given.repeats},
        "device": given.device,
        "versions": versions(),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    result = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    if result.get("protocol") != protocol:  # else it goes on where it was
        trials = tune(given.data, given.rounds, given.repeats, given.device)
        result = {"protocol": protocol, "trials": trials, "values": {}, "ahead_of": {}}
    done = max((len(each["after"]) for each in result["values"].values()), default=0)
    for seed in range(done, given.seeds):
        people = load_people(given.data, seed)
        for name, algorithm in chosen(result["trials"]).items():
            model = fitted(people, algorithm, given.rounds, seed, given.device)
            before, after = accuracies(model, people)
            mine = result["values"].setdefault(name, {"before": [], "after": []})
            mine["before"].append(before)
            mine["after"].append(after)
            print(f"seed {seed}  {name:12}  before {before:.3f}  after {after:.3f}", flush=True)
        result["ahead_of"] = ahead(result["values"])
        given.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(f"written to {given.out}; python examples/motion/page.py renders it")


def tune(data: Path, rounds: int, repeats: int, device: str) -> list[dict[str, Any]]:
    """Everything that was tried: method, settings, mean accuracy on held-out source people."""
    people = [load_people(data, seed) for seed in range(repeats)]
    trials = []
    for name, settings in candidates().items():
        for setting in settings:
            for found, accuracy in tried(people, name, setting, rounds, device):
                trials.append({"method": name, "settings": found, "accuracy": accuracy})
                print(f"tuning  {name:12}  {found}  {accuracy:.3f}", flush=True)
    return trials


def chosen(trials: list[dict[str, Any]]) -> dict[str, Algorithm]:
    """Every method with the settings that did best."""
    best = {}
    for trial in sorted(trials, key=lambda each: each["accuracy"]):
        best[trial["method"]] = method(trial["method"], trial["settings"])
    return best


def ahead(values: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float | None]]:
    """Paired differences of the adapted meta-model to everything else, mean and 95 % interval."""
    ours = values["admm-fedmeta"]
    others = {
        "itself before adapting": ours["before"],
        "fedavg with the same adaptation": values["fedavg"]["after"],
        "a model from scratch": values["scratch"]["after"],
    }
    differences = {
        name: interval([a - b for a, b in zip(ours["after"], other, strict=True)])
        for name, other in others.items()
    }
    return {
        name: {"mean": each.mean, "ci95": each.half_width} for name, each in differences.items()
    }


if __name__ == "__main__":
    main()
