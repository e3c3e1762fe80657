"""Which robust sum holds against which attack: simulated on digits, a table for the page.

    python -m benchmarks.attacks run         # results/attacks/digits.json
    python -m benchmarks.attacks render      # the table in docs/explanation/robust-fleets.md

Ten edges of four nodes, of which one or three are hostile in every round and know of each other.
The guard is that of a fleet by default. A case that has a result is not run again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet_cases import EDGES, NODES, SOURCES
from benchmarks.simulated_edges import Attack, EdgeUplink, edge_of
from experiments.page import between
from fedmeta.algorithms import ADMMFedMeta, Algorithm, FedAvg
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.storage import read_json, write_bytes, write_json
from fedmeta.data import DataSettings, load
from fedmeta.data.federation import Federation, Node
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.fleet.transport import EDGES as GUARD_OF_EDGES
from fedmeta.training.many import train_many
from fedmeta.training.run import Run
from fedmeta.training.train import RunRequest
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.robust_sum import RobustSum

RESULTS = Path(__file__).resolve().parents[1] / "results" / "attacks" / "digits.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "robust-fleets.md"
SEEDS, ROUNDS = 5, 100
MAX_WEIGHT = 4  # of `FleetSettings`: what an edge that claims 1,000 times the samples counts for
TARGET_CLASS = 0  # of the backdoor

DEFENCES: dict[str, tuple[Guard, RobustSum]] = {
    "none": (Guard(), RobustSum()),
    "default": (GUARD_OF_EDGES, RobustSum()),
    "clip": (Guard("clip"), RobustSum()),
    "trimmed-mean": (GUARD_OF_EDGES, RobustSum("trimmed-mean")),
    "median": (GUARD_OF_EDGES, RobustSum("median")),
    "krum": (GUARD_OF_EDGES, RobustSum("krum")),
}
ATTACKS = {
    "nobody": Attack(),
    "sign flip": Attack("sign", 1.0),
    "sign flip × 10⁶": Attack("sign", 1e6),
    "scaling × 10": Attack("scale", 10.0),
    "sample lie × 1,000, sign flip": Attack("sign", 1.0),
    "a little is enough, z = 1.5": Attack("little", 1.5),
    "backdoor × 3": Attack("scale", 3.0),
}
ALGORITHMS: dict[str, Algorithm] = {"admm-fedmeta": ADMMFedMeta(), "fedavg": FedAvg()}


@dataclass(frozen=True)
class Case:
    """A cell of the table.

    Args:
        algorithm, attack, defence: their names.
        hostile: how many of the edges are.
    """

    algorithm: str
    attack: str
    hostile: int
    defence: str

    @property
    def key(self) -> str:
        """Its name in the file of results."""
        return f"{self.algorithm} | {self.attack} | {self.hostile} of {EDGES} | {self.defence}"


def cases() -> list[Case]:
    """All of them, those that others are compared with first."""
    found = [Case(a, "nobody", 0, d) for a in ALGORITHMS for d in ("none", *DEFENCES)]
    for algorithm in ALGORITHMS:
        for attack in list(ATTACKS)[1:]:
            found += [Case(algorithm, attack, n, d) for n in (1, 3) for d in DEFENCES]
    return list(dict.fromkeys(found))


def hostile_nodes(federation: Federation, hostile: int) -> list[Node]:
    """The nodes of the first edges."""
    edges = edge_of(len(federation.sources), EDGES).tolist()
    return [n for n, edge in zip(federation.sources, edges, strict=True) if edge < hostile]


def triggered(inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Images with a bright corner."""
    marked = inputs.copy()
    flat = marked.reshape(len(marked), -1)
    flat[:, [-1, -2, -9, -10]] = flat.max()
    return marked


def poisoned(federation: Federation, hostile: int) -> Federation:
    """Every second sample of the hostile has the trigger, and is of the class that is wanted."""
    inputs, labels = federation.inputs.copy(), federation.labels.copy()
    for node in hostile_nodes(federation, hostile):
        for part in (node.support[::2], node.query[::2]):
            inputs[part], labels[part] = triggered(federation.inputs)[part], TARGET_CLASS
    return replace(federation, inputs=inputs, labels=labels)


def overstated(federation: Federation, hostile: int) -> Federation:
    """The hostile weigh as much as the platform lets them: the same samples, more than once."""
    lying = {node.name for node in hostile_nodes(federation, hostile)}
    copies, nodes, size = [np.arange(len(federation.labels))], [], len(federation.labels)
    for node in federation.nodes:
        parts = [node.support, node.query]
        if node.name in lying:  # samples belong to one set each: these are copies
            for place, part in enumerate(parts):
                more = np.tile(part, MAX_WEIGHT - 1)
                parts[place] = np.concatenate([part, np.arange(size, size + len(more))])
                copies.append(more)
                size += len(more)
        nodes.append(replace(node, support=parts[0], query=parts[1]))
    rows = np.concatenate(copies)
    inputs, labels = federation.inputs[rows], federation.labels[rows]
    return replace(federation, inputs=inputs, labels=labels, nodes=nodes)


def success(run: Run, federation: Federation) -> float:
    """How often adapted targets take images with the trigger for the class that is wanted."""
    inputs, labels = federation.inputs.copy(), federation.labels.copy()
    nodes = []
    for node in federation.targets:
        others = node.query[federation.labels[node.query] != TARGET_CLASS]
        inputs[others], labels[others] = triggered(federation.inputs)[others], TARGET_CLASS
        if len(others):
            nodes.append(replace(node, query=others, precise=others[:0]))
    judged = replace(federation, inputs=inputs, labels=labels).with_nodes(nodes)
    found = evaluate_model(run.meta_model, judged, (1,)).summary()
    return float(found["1"]["mean"] or 0.0)


def measured(case: Case, seeds: Sequence[int], rounds: int = ROUNDS) -> dict[str, Any]:
    """Accuracy of the targets after one step, and how often the trigger works, by seed."""
    guard, robust = DEFENCES[case.defence]
    attack = ATTACKS[case.attack]
    uplink = EdgeUplink(
        guard, robust=robust, edges=EDGES, nodes=SOURCES, attack=attack, hostile=case.hostile or 1
    )
    repeats, honest = [], []
    for seed in seeds:
        settings = DataSettings("digits", nodes=NODES, precise=100)
        federation = load(settings, seed)
        honest.append(federation)
        if "backdoor" in case.attack:
            federation = poisoned(federation, case.hostile)
        if "sample lie" in case.attack:
            federation = overstated(federation, case.hostile)
        spec = RunSpec(
            settings,
            algorithm=ALGORITHMS[case.algorithm],
            training=TrainingSettings(rounds=rounds, seed=seed, evaluate_every=0),
            execution=Execution(path="batched", threads=1, chunk=SOURCES),
            uplink=uplink,
        )
        repeats.append(RunRequest(spec, federation))
    runs = train_many(repeats)
    rates = [
        success(run, own) if isinstance(run, Run) else 0.0
        for run, own in zip(runs, honest, strict=True)
    ]
    return {
        "accuracy": [_accuracy(run) if isinstance(run, Run) else 0.0 for run in runs],
        "trigger": rates,
    }


def _accuracy(run: Run) -> float:
    return float(run.summary["precise_metric"]["1"]["mean"])


def run(results: Path, only: Sequence[str], seeds: range, say: Callable[[str], None]) -> None:
    """Run the cases of these algorithms that have no result, and keep each as it comes."""
    kept = read_json(results, "results") if results.exists() else {"cases": {}}
    kept |= {"seeds": len(seeds), "rounds": ROUNDS}
    first = ("default", "median", "none", "trimmed-mean", "krum", "clip")
    for case in sorted(cases(), key=lambda each: first.index(each.defence)):
        if case.algorithm not in only or case.key in kept["cases"]:
            continue
        began = time.monotonic()
        kept["cases"][case.key] = measured(case, seeds) | {"first_seed": seeds.start}
        results.parent.mkdir(parents=True, exist_ok=True)
        write_json(results, kept)
        mean, _ = interval(kept["cases"][case.key]["accuracy"])
        say(f"{case.key}: {100 * mean:.1f} ({time.monotonic() - began:.0f} s)")


def table(kept: Mapping[str, Any]) -> str:
    """The table of the page: points lost against honest, and how often a trigger works."""
    lines = [f"| algorithm | attack | hostile | {' | '.join(DEFENCES)} |"]
    lines.append("| --- " * (3 + len(DEFENCES)) + "|")
    rows: dict[tuple[str, str, int], list[str]] = {}
    for case in cases():
        found = kept["cases"].get(case.key)
        base = kept["cases"].get(Case(case.algorithm, "nobody", 0, "none").key)
        cell = "–"
        if found is not None and base is not None:
            pairs = zip(found["accuracy"], base["accuracy"], strict=True)
            values = [one - other for one, other in pairs]
            cell = f"{100 * sum(values) / len(values):+.1f}"
            if case.attack == "nobody" and case.defence == "none":
                cell = f"{100 * sum(base['accuracy']) / len(base['accuracy']):.1f} %"
            if "backdoor" in case.attack:
                cell += f" ({100 * sum(found['trigger']) / len(values):.0f} %)"
        rows.setdefault((case.algorithm, case.attack, case.hostile), []).append(cell)
    for (algorithm, attack, hostile), cells in rows.items():
        if any(cell != "–" for cell in cells):
            lines.append(f"| {algorithm} | {attack} | {hostile} of {EDGES} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("run", "render"))
    parser.add_argument("--only", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.what == "run":
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        run(given.results, given.only, seeds, lambda line: print(line, flush=True))
    else:
        text = PAGE.read_text(encoding="utf-8")
        page = between(text, "attacks", table(read_json(given.results, "results")))
        write_bytes(PAGE, page.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
