"""Every way to lay out a round against the slow twin, on the nodes that are hard to lay out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from engines.runs import CHUNKED, convolutional, run
from fedmeta.algorithms import Algorithm, FedAvg
from fedmeta.config.execution import Execution
from fedmeta.core.objective import Adaptation
from fedmeta.data import Federation
from fedmeta.engine import recording
from fedmeta.models.losses import cross_entropy
from fedmeta.uplink.participation import Participation
from oracle import twin
from problems import (
    classification,
    double,
    engine_for,
    flat,
    largest_difference,
    mlp,
    paper_admm,
    twin_model,
    twin_nodes,
)

ROUNDS, TOLERANCE = 20, 1e-10
# Two nodes have one support and one query sample; chunks of 3 and 2 do not divide 5.
SIZES = ((4, 3), (1, 1), (2, 6), (5, 1), (1, 1))
SOME = Participation(fraction=0.8, lost=0.25)
LAYOUTS: dict[str, Execution] = {
    "batched-1": replace(CHUNKED, chunk=1),
    "batched-3": replace(CHUNKED, chunk=3),
    "batched-all": replace(CHUNKED, chunk=100),
    "loop": replace(CHUNKED, path="loop", chunk=1),
    "recorded": replace(CHUNKED, chunk=3),
    "two threads": replace(CHUNKED, threads=2),
    "recorded, two threads": replace(CHUNKED, threads=2, chunk=1),
    "host": replace(CHUNKED, states="host"),
    "disk": replace(CHUNKED, states="disk"),
}
# Recording takes seconds, and where states are is known to change no bit (test_states.py).
QUICK = ("batched-1", "batched-3", "batched-all", "loop", "two threads")


@dataclass(frozen=True, eq=False)
class Case:
    algorithm: Algorithm
    function: Callable[..., Any]
    arguments: dict[str, Any]
    module: nn.Module
    data: Federation
    participation: Participation = Participation()
    layouts: tuple[str, ...] = QUICK


def admm(curvature: Any) -> tuple[Algorithm, Callable[..., Any], dict[str, Any]]:
    algorithm = paper_admm(Adaptation(0.1), 0.5, curvature=curvature)
    return algorithm, twin.admm_fedmeta, {"alpha": 0.1, "rho": 0.5, "curvature": curvature}


FEDAVG = (FedAvg(0.2, local_steps=2), twin.fedavg, {"step_size": 0.2, "local_steps": 2})
PERCEPTRON, NETWORK = mlp(2, 2, 2), convolutional(2)
VALUES = classification(SIZES, shape=(2,), classes=2)
IMAGES = classification(SIZES, shape=(1, 5, 5), classes=2)
LONELY = classification(((2, 3),), shape=(2,), classes=2)
CASES = {
    "exact": Case(*admm("exact"), PERCEPTRON, VALUES, layouts=tuple(LAYOUTS)),
    "exact, some": Case(*admm("exact"), PERCEPTRON, VALUES, SOME, (*QUICK, "disk")),
    "exact, alone": Case(*admm("exact"), PERCEPTRON, LONELY),
    "exact, convolution": Case(*admm("exact"), NETWORK, IMAGES, layouts=(*QUICK, "recorded")),
    "exact, convolution, some": Case(*admm("exact"), NETWORK, IMAGES, SOME),
    "difference": Case(
        *admm("finite-difference"), PERCEPTRON, VALUES, layouts=(*QUICK, "recorded, two threads")
    ),
    "difference, convolution, some": Case(*admm("finite-difference"), NETWORK, IMAGES, SOME),
    "FedAvg": Case(*FEDAVG, PERCEPTRON, VALUES, layouts=(*QUICK, "recorded")),
    "FedAvg, some": Case(*FEDAVG, PERCEPTRON, VALUES, SOME),
    "FedAvg, alone": Case(*FEDAVG, PERCEPTRON, LONELY),
    "FedAvg, convolution": Case(*FEDAVG, NETWORK, IMAGES),
}


@cache
def expected(name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """θ of every round and the last duals by the twin, with the sets that the engine counts."""
    case = CASES[name]
    nodes, model = twin_nodes(case.data), double(case.module)
    engine = engine_for(case.algorithm, case.data, model, participation=case.participation)
    counted = [
        case.participation.counted(len(nodes), t, engine._draws).tolist()
        for t in range(1, ROUNDS + 1)
    ]
    if case.participation == SOME:
        assert len({tuple(each) for each in counted}) > 3
    arguments = dict(case.arguments)
    if "rho" in arguments:
        arguments["rho"] = [arguments["rho"]] * len(nodes)
    start = flat(model.theta)
    history = case.function(
        start,
        nodes,
        twin_model(case.module),
        cross_entropy,
        rounds=ROUNDS,
        participation=counted,
        **arguments,
    )
    thetas, duals = (history, []) if isinstance(history, list) else (history.theta, history.y[-1])
    assert (thetas[-1] - start).abs().max() > 1e-2, "something must have moved"
    return thetas, duals


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name, case in CASES.items() for layout in case.layouts]
)
def test_against_the_twin(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr(recording, "_PATIENCE", -1 if "recorded" in layout else float("inf"))
    got, engine = run(
        case.algorithm,
        double(case.module),
        LAYOUTS[layout],
        case.data,
        ROUNDS,
        participation=case.participation,
    )
    assert bool(engine._sum._recorded) == ("recorded" in layout)
    thetas, duals = expected(name)
    assert largest_difference(got.theta, thetas) <= TOLERANCE
    if duals:
        mine = [
            flat({leaf: stack[i] for leaf, stack in got.nodes["dual"].items()})
            for i in range(len(duals))
        ]
        assert largest_difference(mine, duals) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_single_precision_after_a_round(name: str) -> None:
    case = CASES[name]
    single = double(case.module).to(torch.device("cpu"), torch.float32)
    wanted = expected(name)[0][0]
    for layout in ("batched-3", "loop"):
        execution = replace(LAYOUTS[layout], dtype="float32")
        got, _ = run(
            case.algorithm, single, execution, case.data, 1, participation=case.participation
        )
        assert got.theta[0].dtype == torch.float32
        assert (got.theta[0].double() - wanted).norm() <= 1e-4 * wanted.norm()
