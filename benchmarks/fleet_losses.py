"""Edges that get lost at random, with real processes: does it agree with the simulation?

    python benchmarks/fleet_losses.py [--rounds 30] [--edges 5] [--lost 0.3] [--seed 0]

A platform and edges as processes over Flower, with TLS and keys, train the digits. In every round a
seeded share of the edges is lost: their data are out of reach while the round lasts, so they refuse
it, and the platform goes on without them. Beside it the local engine with nobody lost, and with the
edges lost that the platform did not count. Needs fedmeta[flower]; a round takes some seconds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.simulated_edges import edge_of
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table
from fedmeta.config.training import TrainingSettings
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import load
from fedmeta.fleet.local_fleet import make_keys, new_plan, run_trial, write_shards
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.training.train import RunRequest, train_run
from fedmeta.uplink.participation import Participation

_LOOK = 0.1  # seconds between two looks at how far the run is


@dataclass(frozen=True)
class Recorded(Participation):
    """The edges that were lost in a run, lost again.

    Args:
        fraction, lost, independent: as they are.
        edges: how many there are.
        missing: numbers of those that were not counted, by round.
    """

    edges: int = 5
    missing: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def counted(self, nodes: int, round_number: int, key: Tensor) -> Tensor:
        """Positions of the nodes whose edges were counted in a round."""
        edge = edge_of(nodes, self.edges).tolist()
        gone = self.missing.get(round_number, frozenset())
        return torch.tensor([place for place in range(nodes) if edge[place] not in gone])


class Thief:
    """Takes the data of some edges away while a round lasts, and brings them back.

    Args:
        run: the run folder, which says how many rounds are done.
        homes: of the edges.
        lost: probability that an edge is lost in a round; one always stays.
        seed: of who is.
    """

    def __init__(self, run: Path, homes: list[Path], lost: float, seed: int) -> None:
        self._run, self._homes, self._lost = RunFolder(run), homes, lost
        self._luck, self._over = random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        seen = -1
        while not self._over.wait(_LOOK):
            done = len(self._run.history())
            if done > seen and (self._run.path / "settings.json").exists():  # all have introduced
                seen = done
                gone = [self._luck.random() < self._lost for _ in self._homes]
                if all(gone):
                    gone[self._luck.randrange(len(gone))] = False
                for home, away in zip(self._homes, gone, strict=True):
                    _move(home, away)
        for home in self._homes:
            _move(home, False)


def _move(home: Path, away: bool) -> None:
    here, there = home / "shard.safetensors", home / "shard.gone"
    if away and here.exists():
        here.rename(there)
    elif not away and there.exists():
        there.rename(here)


def main() -> None:
    """Train with real processes, then the same here, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--edges", type=int, default=5)
    parser.add_argument("--lost", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedmeta-losses-") as name:
        measure(Path(name), given.rounds, given.edges, given.lost, given.seed)


def measure(folder: Path, rounds: int, edges: int, lost: float, seed: int) -> None:
    """Print accuracies, and how far the two models with the same losses are apart."""
    table: Table = {
        "data": {"name": "digits", "nodes": 50, "precise": 100},
        "training": {"rounds": rounds, "seed": seed, "evaluate_every": 0},
        "execution": {"threads": 1, "path": "batched"},
    }
    settings = RunSpec.from_dict(table)
    federation = load(settings.data_settings, seed)
    run, place = folder / "run", folder / "edges"
    targets = write_shards(place, federation, edges)
    make_keys(place / "certs", edges)
    new_plan(run, table, FleetSettings(edges, quorum=1 / edges, deadline=120.0), targets)
    homes = sorted(place.glob("edge-*"))
    with Thief(run, homes, lost, seed):
        run_trial(run, place, place / "certs", None, [])
    opened = RunFolder.open(run)
    missing = {
        record["round"]: frozenset(
            number
            for number, home in enumerate(homes)
            if f"edge {home.name} was not counted" in record.get("note", "")
        )
        for record in opened.history()
    }
    times = sum(map(len, missing.values()))
    print(f"{edges} edges, {rounds} rounds: {times / edges / rounds:.0%} of all answers were lost")
    print(f"{'edges lost, real processes':36s} {_accuracies(opened.summary())}")
    for label, who in (
        ("the same lost, local engine", Recorded(edges=edges, missing=missing)),
        ("nobody lost, local engine", Participation()),
    ):
        training = TrainingSettings(rounds=rounds, seed=seed, evaluate_every=0)
        spec = replace(settings, participation=who, training=training)
        local = train_run(RunRequest(spec, federation))
        print(f"{label:36s} {_accuracies(local.summary)}")
        if isinstance(who, Recorded):
            print(f"{'largest difference of a parameter':36s} {_apart(local.meta_model, run):.1e}")


def _accuracies(summary: Mapping[str, object]) -> str:
    found = []
    for key, what in (("target_metric", "query sets"), ("precise_metric", "precise sets")):
        metric = summary[key]
        assert isinstance(metric, Mapping)
        found.append(f"{100 * metric['1']['mean']:.1f} % on {what}")
    return ", ".join(found)


def _apart(model: MetaModel, run: Path) -> float:
    theirs = load_theta(run)
    return max(float((leaf - theirs[name]).abs().max()) for name, leaf in model.theta.items())


if __name__ == "__main__":
    main()
