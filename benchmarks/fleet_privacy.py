"""Clip, penalty and rounds for every promise of privacy, judged on held-out source nodes.

    python -m benchmarks.fleet_privacy --data digits
    python -m benchmarks.fleet_privacy --data fashion-mnist --folder DATA

Seeds are other ones than those of `benchmarks.fleet_simulation`, which measures what is found here;
targets are never looked at. Results go to results/fleet/tuning. Needs the extra dp.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from benchmarks.fleet_cases import (
    POPULATIONS,
    PROMISES,
    Population,
    private,
    promised,
    tuning_file,
)
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError
from fedmeta.core.storage import read_json, write_json
from fedmeta.data import DataSettings, load
from fedmeta.data.federation import Federation
from fedmeta.models.networks import ModelSettings
from fedmeta.studies.tune import HELD_OUT
from fedmeta.training.train import train
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink

SEEDS = (100, 101, 102, 103, 104)
# The step that a round takes at most is clip/penalty, which all depends on; the clip by itself
# matters little below the norms that contributions have (about 1).
_STEPS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_WITH_NOISE = ((5, 20), (0.1,), _STEPS)
_WITHOUT = ((20, 50), (0.1, 1.0), (0.1, 0.3, 1.0, 3.0))


def reached(
    federation: Federation, seed: int, privacy: Privacy, rounds: int, algorithm: ADMMFedMeta
) -> float:
    """Accuracy of the held-out nodes after one step; 0 where training diverged."""
    execution = Execution(path="batched", threads=1, chunk=len(federation.sources))
    training = TrainingSettings(rounds=rounds, seed=seed, evaluate_every=0)
    uplink = Uplink(privacy=privacy)
    try:
        run = train(
            federation,
            ModelSettings("linear"),
            algorithm,
            training,
            execution=execution,
            uplink=uplink,
        )
    except DivergedError:
        return 0.0
    return float(run.summary["target_metric"]["1"]["mean"])


def tuned(
    population: Population,
    federations: Sequence[tuple[int, Federation]],
    dp: Literal["central", "local"],
    epsilon: float | None,
) -> list[dict[str, Any]]:
    """All points that were tried, the best first."""
    trials = []
    for rounds, clip, step in itertools.product(*(_WITH_NOISE if epsilon else _WITHOUT)):
        known = private(dp, epsilon, clip, rounds)
        penalty = float(f"{clip / step:.4g}")
        algorithm = population.algorithm(penalty)
        values = [reached(one, seed, known, rounds, algorithm) for seed, one in federations]
        mean = sum(values) / len(values)
        trials.append({"rounds": rounds, "clip": clip, "penalty": penalty, "mean": mean})
    return sorted(trials, key=lambda trial: -float(trial["mean"]))


def tune(data: str, folder: str | None, population: Population, seeds: int) -> None:
    """Find settings for every promise that has none yet."""
    file = tuning_file(data, population)
    kept: dict[str, Any] = {"seeds": list(SEEDS[:seeds]), "best": {}, "trials": {}}
    if file.exists():
        kept = read_json(file, "tuned settings")
    settings = replace(DataSettings(data, folder=folder), **population.changes)
    federations = [(seed, load(settings, seed).hold_out(HELD_OUT, seed)) for seed in kept["seeds"]]
    for dp, epsilon in PROMISES:
        name = promised(dp, epsilon)
        if name in kept["best"]:
            continue
        trials = tuned(population, federations, dp, epsilon)
        kept["best"][name], kept["trials"][name] = trials[0], trials
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, kept)
        print(f"{data}, {population.sources} nodes, {name}: {trials[0]}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="digits", choices=sorted(POPULATIONS))
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    given = parser.parse_args()
    for population in POPULATIONS[given.data]:
        tune(given.data, given.folder, population, given.seeds)


if __name__ == "__main__":
    main()
