r"""What a round costs with a frozen backbone, against a round on precomputed features.

    python -m benchmarks.frozen_backbone --data-folder DATA --image-size 64

The backbone's features are computed once, before the first round; then rounds of both are timed in
turns in one process. Prints the ratio of medians, the time before round 1, the memory that features
take, and the bytes a node sends.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import nn

from fedmeta.algorithms import ADMMFedMeta, Algorithm, FedAvg, PerFedAvg
from fedmeta.config.spec import RunSpec
from fedmeta.data import DataSettings, load
from fedmeta.engine.machine import machine
from fedmeta.models.networks import ModelSettings
from fedmeta.training.job import Job, prepare

ALGORITHMS: tuple[Algorithm, ...] = (ADMMFedMeta(), PerFedAvg(), FedAvg(local_steps=5))


def in_turns(jobs: Sequence[Job], rounds: int) -> list[float]:
    """The median time of a round of every job, in seconds."""
    engines = [job.engine() for job in jobs]
    states = [engine.start(job.model.theta) for engine, job in zip(engines, jobs, strict=True)]
    times: list[list[float]] = [[] for _ in jobs]
    for number in range(1, rounds + 3):
        for place, (job, engine) in enumerate(zip(jobs, engines, strict=True)):
            with machine(job.layout.execution):
                started = time.perf_counter()
                states[place] = engine.round(*states[place], number)[:2]
                if number > 2:  # the first ones warm up
                    times[place].append(time.perf_counter() - started)
    return [median(each) for each in times]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per algorithm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-folder")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--backbone", default="efficientnet-lite:0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args(arguments)
    data = DataSettings(asked.data, asked.data_folder, nodes=asked.nodes)
    model = ModelSettings(backbone=asked.backbone, image_size=asked.image_size)
    federation = load(data, 0)
    for algorithm in ALGORITHMS:
        started = time.perf_counter()
        whole = prepare(RunSpec(data, model, algorithm), federation)
        before = time.perf_counter() - started
        assert whole.features is not None
        features = whole.features.federation
        width = features.inputs.shape[1]
        torch.manual_seed(0)
        head = nn.Sequential(nn.Linear(width, 64), nn.ELU(), nn.Linear(64, federation.task.outputs))
        alone = replace(
            RunSpec(data, head, whole.spec.algorithm),  # both adapt alike
            data=replace(whole.spec.data_settings, scaling="none"),
        )
        cut = prepare(alone, features)
        frozen, plain = in_turns([whole, cut], asked.rounds)
        held = sum(len(n.support) + len(n.query) for n in features.nodes) * width * 4
        sent = 4 * sum(leaf.numel() for leaf in whole.model.theta.values())
        print(
            f"{algorithm.name:13} {1000 * frozen:8.2f} ms whole, {1000 * plain:8.2f} ms "
            f"on features: {frozen / plain:.2f} ×; before round 1 {before:.1f} s, features "
            f"{held / 1e6:.1f} MB, {sent / 1e6:.2f} MB sent per node and round",
            flush=True,
        )


if __name__ == "__main__":
    main()
