"""Tiny problems that several tests share, and the same problems as the slow twin sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmeta.algorithms import ADMMFedMeta, Algorithm, NodeState, PlatformState
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, Node, Scaling, Task, unpacked
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.local import LocalEngine
from fedmeta.models import losses
from fedmeta.models.functional import FunctionalModel, functionalise
from fedmeta.models.losses import Loss
from fedmeta.models.networks import ModelSettings
from fedmeta.training.callbacks import Callback
from fedmeta.training.job import Job, prepare
from fedmeta.training.many import train_jobs
from fedmeta.training.run import Outcome
from fedmeta.training.train import RunRequest
from fedmeta.uplink.participation import Participation
from oracle.twin import Model, OracleNode

PLAIN = Scaling(np.zeros(()), np.ones(()))
DOUBLE = Execution(dtype="float64")
LAYOUTS = {
    "batched-1": replace(DOUBLE, path="batched", chunk=1),
    "batched-3": replace(DOUBLE, path="batched", chunk=3),
    "batched-all": replace(DOUBLE, path="batched", chunk=100),
    "loop": replace(DOUBLE, path="loop", chunk=1),
}
UNEVEN = ((4, 3), (2, 6), (5, 1), (3, 3), (1, 4))


def classification(
    sizes: Sequence[tuple[int, int]] = UNEVEN,
    targets: Sequence[tuple[int, int]] = ((3, 4), (2, 3)),
    shape: tuple[int, ...] = (3,),
    classes: int = 3,
    seed: int = 0,
) -> Federation:
    """Gaussian classes; `sizes` are the support and query samples of the sources."""
    rng = np.random.default_rng(seed)
    total = sum(map(sum, [*sizes, *targets]))
    labels = rng.integers(0, classes, total)
    centres = rng.normal(size=(classes, *shape))
    inputs = centres[labels] + 0.7 * rng.normal(size=(total, *shape))
    task = Task("classification", classes, tuple(f"class {c}" for c in range(classes)))
    return Federation(inputs, labels, task, _nodes(sizes, targets), name="toy classes")


def regression(
    sizes: Sequence[tuple[int, int]] = UNEVEN,
    targets: Sequence[tuple[int, int]] = ((3, 4), (2, 3)),
    seed: int = 0,
) -> Federation:
    """A noisy linear function of two features per node."""
    rng = np.random.default_rng(seed)
    nodes = _nodes(sizes, targets)
    total = sum(node.size for node in nodes)
    inputs, labels = rng.normal(size=(total, 2)), np.zeros((total, 1))
    for node in nodes:
        rows = np.concatenate([node.support, node.query])
        labels[rows] = inputs[rows] @ rng.normal(size=(2, 1))
    return Federation(inputs, labels, Task("regression", 1), nodes, name="toy values")


def _nodes(sizes: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> list[Node]:
    nodes, start = [], 0
    for number, (support, query) in enumerate([*sizes, *targets]):
        middle, end = start + support, start + support + query
        role = "source" if number < len(sizes) else "target"
        rows = np.arange(start, middle), np.arange(middle, end)
        nodes.append(Node(f"n{number}", role, *rows))
        start = end
    return nodes


def mlp(inputs: int = 3, hidden: int = 3, outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """A small smooth network in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)]
        return nn.Sequential(*layers).double()


def softmax_regression(inputs: int = 3, outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """One linear layer in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, outputs)).double()


def paper_admm(
    inner: Adaptation = Adaptation(),
    penalty: float | Mapping[str, float] = 0.3,
    *more: Any,
    **rest: Any,
) -> ADMMFedMeta:
    """ADMM-FedMeta as it is printed: a fixed penalty, support and query sets as they are."""
    return ADMMFedMeta(inner, penalty, *more, resplit="none", **rest)


@dataclass
class Trace:
    """Every round of a run of the engine, parameters as flat vectors."""

    theta: list[Tensor]
    metrics: list[dict[str, float]]
    counted: list[list[int]]
    state: PlatformState
    nodes: NodeState
    penalties: list[float]


def job_of(
    federation: Federation,
    model: nn.Module | ModelSettings,
    algorithm: Algorithm,
    training: TrainingSettings = TrainingSettings(),
    *,
    scaling: Scaling | None = None,
    repeats: int = 1,
    layout: Layout | None = None,
    **parts: Any,
) -> Job:
    """A run with everything resolved, on a federation of its own."""
    spec = RunSpec(data=None, model=model, algorithm=algorithm, training=training, **parts)
    return prepare(spec, federation, scaling=scaling, repeats=repeats, layout=layout)


def together(
    jobs: Sequence[Job],
    *,
    folders: Sequence[Path] | None = None,
    origins: Sequence[Mapping[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Outcome]:
    """Jobs trained all at once."""
    requests = [
        RunRequest(
            job.spec,
            job.federation,
            folder=folders[place] if folders else None,
            origin=origins[place] if origins else {},
        )
        for place, job in enumerate(jobs)
    ]
    return train_jobs(requests, jobs, callbacks)[jobs[0].training.rounds]


def engine_for(
    algorithm: Algorithm,
    federation: Federation,
    model: FunctionalModel,
    execution: Execution = LAYOUTS["batched-all"],
    participation: Participation = Participation(),
    loss: Loss = losses.cross_entropy,
    seed: int = 0,
) -> LocalEngine:
    """An engine on unscaled inputs, laid out as told."""
    layout = Layout(execution, Objective(predictor(model, execution), loss))
    return LocalEngine(algorithm, Cohort(federation, PLAIN, seed), layout, participation)


def trace(engine: LocalEngine, model: FunctionalModel, rounds: int) -> Trace:
    """Run an engine for some rounds."""
    state, nodes = engine.start(model.theta)
    counted = [
        engine._participation.counted(engine.fleet.nodes, t, engine._draws).tolist()
        for t in range(1, rounds + 1)
    ]
    result = Trace([], [], counted, state, nodes, engine.table.standing.penalty.tolist())
    for t in range(1, rounds + 1):
        result.state, result.nodes, metrics = engine.round(result.state, result.nodes, t)
        result.theta.append(flat(result.state.theta))
        result.metrics.append(metrics)
    return result


def double(module: nn.Module) -> FunctionalModel:
    """A module taken apart, in float64 on the CPU."""
    return functionalise(module).to(torch.device("cpu"), torch.float64)


def flat(theta: Tree) -> Tensor:
    """A tree as one vector, in its own order."""
    return torch.cat([leaf.reshape(-1) for leaf in theta.values()]).clone()


def unflat(vector: Tensor, like: Tree) -> Tree:
    """The inverse of `flat`."""
    parts = vector.split([leaf.numel() for leaf in like.values()])
    pairs = zip(like.items(), parts, strict=True)
    return {name: part.reshape(leaf.shape) for (name, leaf), part in pairs}


def twin_model(module: nn.Module) -> Model:
    """The module as the twin wants it: a function of one flat vector."""
    like = {name: p.detach() for name, p in module.named_parameters()}
    return lambda vector, x: functional_call(module, unflat(vector, like), (x,))


def twin_nodes(federation: Federation) -> list[OracleNode]:
    """The source nodes as the twin wants them."""
    nodes = []
    for node in federation.sources:
        data = unpacked(federation, node, PLAIN, torch.float64)
        nodes.append(OracleNode(*data.support[:2], *data.query[:2]))
    return nodes


def largest_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """max |a − b| over all rounds and entries."""
    assert len(a) == len(b) > 0
    return float(torch.stack([(x - y).abs().max() for x, y in zip(a, b, strict=True)]).max())
