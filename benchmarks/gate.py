"""How often the release gate errs, with real models on real samples.

    python -m benchmarks.gate --data DATA/small/fashion_mnist_10k.npz --out fashion.json
    python -m benchmarks.gate --data DATA/cifar10.npz --out cifar10.json

A model is trained once. Its candidates are copies whose weights have a random direction added, as
long as it takes to lose two points of accuracy (the planted regression) or none (harmless: too
short to change the mean by a tenth of a point). Each seed draws ten target nodes; the length is
found on all other samples of their classes, and the gate judges on 200 samples of each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedmeta
from fedmeta import DataSettings, Federation, MetaModel
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.result import Evaluation
from fedmeta.studies.gate import falls, judge

PLANTED, HARMLESS = 0.02, 0.0005
NODES, SAMPLES, CALIBRATING = 10, 200, 1200


def targets(data: str, seed: int, nodes: int, precise: int) -> Federation:
    """Nodes of that number, all of them targets, with precise sets."""
    settings = DataSettings(data, nodes=nodes, precise=precise, target_share=0.5)
    drawn = fedmeta.load(settings, seed)
    everyone = [replace(each, role="target") for each in drawn.targets]
    return drawn.with_nodes(everyone)


def others(some: Federation, judging: Federation) -> Federation:
    """The nodes with those of their samples that the gate does not look at."""
    pairs = zip(some.targets, judging.targets, strict=True)
    rest = [replace(a, precise=np.setdiff1d(a.precise, b.precise)) for a, b in pairs]
    return some.with_nodes(rest)


def judged(model: MetaModel, nodes: Federation) -> Evaluation:
    """The targets under a model after its own number of steps."""
    return evaluate_model(model, nodes, [model.adaptation.steps])


def moved(model: MetaModel, length: float, seed: int) -> MetaModel:
    """The model with a random direction of that relative length in every tensor."""
    draw = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(leaf.shape, generator=draw) for name, leaf in model.theta.items()}
    theta = {
        name: leaf + length * noise[name] * leaf.norm() / noise[name].norm().clamp(min=1e-12)
        for name, leaf in model.theta.items()
    }
    return replace(model, theta=theta)


def mean_fall(old: Evaluation, model: MetaModel, nodes: Federation) -> float:
    """By how much the accuracy of the calibrating nodes falls."""
    sums = falls(old, judged(model, nodes))
    return sums.fall / sums.nodes


def length_of(
    model: MetaModel, old: Evaluation, nodes: Federation, fall: float, seed: int
) -> float:
    """How far to move in a random direction to fall by that much, by halving."""
    low, high = 0.0, 2.0
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if mean_fall(old, moved(model, middle, seed), nodes) < fall
            else (low, middle)
        )
    return (low + high) / 2


def checked(data: str, seeds: Sequence[int]) -> dict[str, Any]:
    """How many planted and harmless candidates the gate blocks."""
    federation = fedmeta.load(DataSettings(data, nodes=40), 0)
    training = fedmeta.TrainingSettings(rounds=40, evaluate_every=0)
    sources = federation.with_nodes(federation.sources)
    network = fedmeta.ModelSettings("mlp")
    model = fedmeta.train(sources, network, training=training, progress=False).meta_model
    rows = []
    for seed in seeds:
        nodes = targets(data, seed, 2 * NODES, SAMPLES)
        calibrating = others(targets(data, seed, 2 * NODES, CALIBRATING), nodes)
        before = judged(model, calibrating)
        old = judged(model, nodes)
        row: dict[str, Any] = {"seed": seed, "nodes": len(nodes.targets)}
        for name, fall in (("planted", PLANTED), ("harmless", HARMLESS)):
            candidate = moved(model, length_of(model, before, calibrating, fall, seed), seed)
            sums = falls(old, judged(candidate, nodes))
            verdict = judge(sums, "accuracy", task="task", against="old")
            row[name] = {"blocked": verdict.blocked, "fall": verdict.fall, "±": verdict.half_width}
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    count = {name: sum(row[name]["blocked"] for row in rows) for name in ("planted", "harmless")}
    return {"seeds": len(rows), "blocked": count, "rows": rows}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = checked(given.data, range(given.seeds))
    print(found["blocked"], "of", found["seeds"])
    if given.out:
        given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
