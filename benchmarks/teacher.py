"""What a teacher of another architecture is worth: CIFAR-10, two classes per node.

    python -m benchmarks.teacher answers --folder DATA --out cloud.npz    # extra `backbones`
    python -m benchmarks.teacher run --folder DATA --cloud cloud.npz --out results/teacher.json

The platform has 2,500 images that belong to no node: 500 with labels, of which a linear layer on
the features of an ImageNet-pretrained EfficientNet-Lite0 learns the classes, and 2,000 without,
which that teacher is asked about. Four trainings on the same nodes, paired by seed:

    default            no knowledge from the platform
    teacher            the default held near the teacher's answers, λ chosen on held-out nodes
    start              begins with weights that were trained on the 500 images instead
    start and teacher  both
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.results import machine_words
from experiments.statistics import accuracy, paired
from experiments.training import record
from fedmeta.config.spec import RunSpec
from fedmeta.core.storage import write_json
from fedmeta.core.tree import Tree
from fedmeta.data import DataSettings, Federation, Pool, deal_out, read
from fedmeta.data.scaling import Scaling
from fedmeta.evaluation.intervals import interval
from fedmeta.models.functional import functionalise
from fedmeta.models.networks import build
from fedmeta.priors import PriorSettings
from fedmeta.studies.tune import HELD_OUT
from fedmeta.training.many import train_many
from fedmeta.training.run import Outcome, Run
from fedmeta.training.train import RunRequest

LABELLED, UNLABELLED = 50, 200  # of each class
STRENGTHS = (0.3, 1.0, 3.0)
FIRST_HELD_OUT = 100
_EPOCHS, _BATCH = 60, 50


def parted(folder: str) -> tuple[Pool, dict[str, Any]]:
    """What nodes are dealt from, and what the platform has."""
    pool = read(DataSettings("cifar10", folder), 0)
    draw = np.random.default_rng(0)
    of_class = [draw.permutation(np.flatnonzero(pool.labels == c)) for c in range(10)]
    labelled = np.concatenate([rows[:LABELLED] for rows in of_class])
    asked = np.concatenate([rows[LABELLED : LABELLED + UNLABELLED] for rows in of_class])
    nodes = np.setdiff1d(np.arange(len(pool.labels)), np.concatenate([labelled, asked]))
    cloud = {"x": pool.inputs[asked], "known": pool.inputs[labelled], "y": pool.labels[labelled]}
    return pool._replace(inputs=pool.inputs[nodes], labels=pool.labels[nodes]), cloud


def answers(folder: str) -> dict[str, Any]:
    """The platform's images with the teacher's probabilities for those without labels."""
    from fedmeta.models.backbone import frozen_body

    cloud = parted(folder)[1]
    body, width = frozen_body("efficientnet-lite:0", (3, 32, 32), 160, None, False)

    def features(images: Any) -> Tensor:
        scaled = torch.from_numpy(images).float() / 255
        with torch.no_grad():
            return torch.cat([body(part) for part in torch.split(scaled, 50)])

    known, labels = features(cloud["known"]), torch.from_numpy(cloud["y"])
    weights = torch.zeros(10, width + 1, requires_grad=True)

    def said(inputs: Tensor) -> Tensor:
        return inputs @ weights[:, :-1].T + weights[:, -1]

    rule = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Any:
        rule.zero_grad()
        value = cross_entropy(said(known), labels) + 1e-3 * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    rule.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return {**cloud, "probabilities": said(features(cloud["x"])).softmax(dim=1).numpy()}


def settings_of(asked: argparse.Namespace) -> RunSpec:
    """What `fedmeta train` does without options."""
    return RunSpec.from_dict(
        {
            "data": {
                "name": "cifar10",
                "folder": asked.folder,
                "nodes": asked.nodes,
                "precise": asked.precise,
            },
            "training": {"rounds": asked.rounds, "evaluate_every": 0},
            "execution": {"device": asked.device, "precision": asked.precision},
        }
    )


def teaching(cloud: Mapping[str, Any], file: Path, strength: float) -> PriorSettings:
    """The teacher as whoever has its answers."""
    said = {
        image.tobytes(): row for image, row in zip(cloud["x"], cloud["probabilities"], strict=True)
    }

    def teacher(inputs: Any) -> Any:
        images = np.asarray(inputs).round().astype(np.uint8)
        return np.stack([said[image.tobytes()] for image in images])

    return PriorSettings(teacher=teacher, data=str(file), strength=strength)


def pretrained(spec: RunSpec, cloud: Mapping[str, Any], scaling: Scaling, seed: int) -> Tree:
    """The default's network, trained on the platform's labelled images alone, by Adam."""
    module = build(spec.model_settings, cloud["known"].shape[1:], 10, seed)
    network = functionalise(module)
    device = torch.device(spec.execution.device)
    theta = {k: v.to(device).requires_grad_() for k, v in network.theta.items()}
    network = network.to(device, torch.float32)
    inputs = scaling.apply(cloud["known"], torch.float32).to(device)
    labels = torch.from_numpy(cloud["y"]).to(device)
    rule = torch.optim.Adam(theta.values(), 1e-3)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(labels), generator=draw).to(device).split(_BATCH):  # type: ignore[no-untyped-call]
            images = inputs[rows].flip(3) if torch.rand((), generator=draw) < 0.5 else inputs[rows]
            rule.zero_grad()
            cross_entropy(network(theta, images), labels[rows]).backward()  # type: ignore[no-untyped-call]
            rule.step()
    return {name: leaf.detach().cpu() for name, leaf in theta.items()}


def trained(
    spec: RunSpec,
    nodes: Mapping[int, Federation],
    prior: PriorSettings = PriorSettings(),
    starts: Mapping[int, Tree] | None = None,
) -> list[Outcome]:
    """The same training on the nodes of every seed."""
    specs = [replace(spec.replaced(seed=seed), prior=prior) for seed in nodes]
    if starts is not None:
        pairs = zip(specs, nodes, strict=True)
        specs = [replace(own, start=starts[seed]) for own, seed in pairs]
    return train_many(list(map(RunRequest, specs, nodes.values())))


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """All trainings."""
    spec, pool = settings_of(asked), parted(asked.folder)[0]
    with np.load(asked.cloud, allow_pickle=False) as arrays:
        cloud = {name: arrays[name] for name in arrays.files}
    prior = partial(teaching, cloud, Path(asked.cloud))

    def drawn(seeds: Sequence[int]) -> dict[int, Federation]:
        return {seed: deal_out(pool, spec.data_settings, seed) for seed in seeds}

    held = {
        seed: each.hold_out(HELD_OUT, seed)
        for seed, each in drawn(range(FIRST_HELD_OUT, FIRST_HELD_OUT + asked.held_out)).items()
    }
    search = {}
    for value in STRENGTHS:
        outcomes_there = zip(held, trained(spec, held, prior(value)), strict=True)
        search[value] = accuracy([record(seed, each) for seed, each in outcomes_there])
    strength = max(STRENGTHS, key=lambda value: (search[value] or {}).get("mean") or 0.0)
    nodes = drawn(range(asked.seeds))
    outcomes = {"default": trained(spec, nodes), "teacher": trained(spec, nodes, prior(strength))}
    scalings = {
        seed: each.meta_model.scaling
        for seed, each in zip(nodes, outcomes["default"], strict=True)
        if isinstance(each, Run)
    }
    starts = {seed: pretrained(spec, cloud, scalings[seed], seed) for seed in nodes}
    outcomes["start"] = trained(spec, nodes, starts=starts)
    outcomes["start and teacher"] = trained(spec, nodes, prior(strength), starts)
    kept = {
        name: [record(seed, each) for seed, each in zip(nodes, found, strict=True)]
        for name, found in outcomes.items()
    }
    right = cloud["probabilities"].argmax(axis=1) == np.repeat(np.arange(10), UNLABELLED)
    return {
        "about": __doc__.splitlines()[0],
        "machine": machine_words(asked.device),
        "rounds": asked.rounds,
        "teacher, own accuracy": round(100 * float(right.mean()), 2),
        "strength": strength,
        "held-out": {f"{value:g}": entry for value, entry in search.items()},
        "accuracy": {name: accuracy(found, "precise") for name, found in kept.items()},
        "minus default": {
            name: paired(found, kept["default"], "precise")
            for name, found in kept.items()
            if name != "default"
        },
        "per node": {
            name: {
                what: interval([each[what] for each in found]).mean
                for what in ("bytes", "gradients")
            }
            for name, found in kept.items()
            if "bytes" in found[0]
        },
        "repeats": kept,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("answers", "run"))
    parser.add_argument("--folder", required=True, help="with cifar10.npz")
    parser.add_argument("--cloud", default="build/cloud.npz")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--held-out", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--precise", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="full")
    asked = parser.parse_args(argv)
    if asked.what == "answers":
        Path(asked.out).parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(asked.out, **answers(asked.folder))
    else:
        write_json(Path(asked.out), run(asked))


if __name__ == "__main__":
    main()
