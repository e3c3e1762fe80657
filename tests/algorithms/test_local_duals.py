"""Several local steps whose size is found: as the twin has them, and never astray."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta, local_duals
from fedmeta.core import tree
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from fedmeta.models.losses import cross_entropy
from fedmeta.uplink.participation import Participation
from oracle import twin
from problems import (
    LAYOUTS,
    classification,
    double,
    engine_for,
    flat,
    mlp,
    trace,
    twin_model,
    twin_nodes,
)

FEDERATION = classification(((4, 3), (2, 6), (5, 1), (3, 3)), shape=(2,), classes=2)
MODULE = mlp(2, 2, 2)
MODEL = double(MODULE)
PLAIN = ADMMFedMeta(Adaptation(0.1), local_steps=4, resplit="none")
ROUNDS = 15


def vector(*entries: float) -> Tree:
    return {"x": torch.tensor(entries, dtype=torch.float64)}


def quadratic(*curvatures: float, at: float = 0.0):  # type: ignore[no-untyped-def]
    """½ Σ c_j (x_j − at)² as a function of a tree."""
    c = torch.tensor(curvatures, dtype=torch.float64)

    def gradient(theta: Tree) -> tuple[Tree, Tensor]:
        off = theta["x"] - at
        return {"x": c * off}, 0.5 * (c * off.square()).sum()

    return gradient


@pytest.mark.parametrize("duals", [True, False])
@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_duals_are_those_of_the_twin(duals: bool, steps: int, share: float) -> None:
    algorithm = replace(PLAIN, local_steps=steps, duals=duals)
    for layout in ("batched-all", "batched-3", "loop"):
        engine = engine_for(
            algorithm, FEDERATION, MODEL, LAYOUTS[layout], Participation(fraction=share)
        )
        state, nodes = engine.start(MODEL.theta)
        sent, found, counted = [], [], []
        for number in range(1, ROUNDS + 1):
            sent.append(flat(state.theta))
            counted.append(engine._participation.counted(4, number, engine._draws).tolist())
            state, nodes, metrics = engine.round(state, nodes, number)
            assert metrics["rejected"] == 0
            found.append(flat(state.memory["dual"]))
        expected = twin.several_local_steps(
            sent,
            twin_nodes(FEDERATION),
            twin_model(MODULE),
            cross_entropy,
            alpha=0.1,
            K=steps,
            participation=counted,
            duals=duals,
        )
        assert float((sent[-1] - sent[0]).abs().max()) > 1e-2
        for one, other in zip(found, expected, strict=True):
            assert float((one - other).abs().max()) < 1e-10, layout


def test_a_quadratic_by_hand() -> None:
    """L̂ = 2 known, K = 1, ỹ⁻ = 0: θ_i = 1 − 2/(1.8 + 1.8), ỹ = 1.8 (θ_i − 1) with L̂ faded once."""
    found = local_duals.solved(
        quadratic(2.0), vector(1.0), vector(0.0), torch.tensor(2.0).double(), 1, remember=False
    )
    assert float(found.dual["x"]) == pytest.approx(-1.0, rel=1e-12)
    assert float(found.moved["x"]) == pytest.approx(-2 / 3.6, rel=1e-12)
    assert float(found.smoothness) == 2.0  # no secant was seen
    assert float(found.loss) == 1.0


def test_the_first_secant_finds_the_curvature() -> None:
    start = torch.zeros((), dtype=torch.float64)
    found = local_duals.solved(quadratic(40.0, 40.0), vector(3.0, 4.0), vector(0.0, 0.0), start, 2)
    assert float(found.smoothness) == pytest.approx(40.0, rel=1e-9)


def test_a_new_node_sends_its_gradient() -> None:
    """It begins with ỹ⁻ = −G(θ), which solves the local problem, but for the probing step."""
    start = torch.zeros((), dtype=torch.float64)
    found = local_duals.solved(quadratic(1.0, 30.0), vector(1.0, 2.0), vector(0.0, 0.0), start, 8)
    assert torch.allclose(found.dual["x"], torch.tensor([-1.0, -60.0]).double(), rtol=1e-2)


def test_many_steps_solve_the_local_problem() -> None:
    """ỹ = −G(θ_i) and θ_i = θ − (G(θ_i) + ỹ⁻)/ρ̃ with ρ̃ = L̂."""
    curvatures, bend = (1.0, 5.0, 9.0), torch.tensor(10.0).double()
    theta, dual = vector(1.0, 1.0, 1.0), vector(-0.9, -4.0, -8.0)
    found = local_duals.solved(quadratic(*curvatures), theta, dual, bend, 60)
    assert float(found.smoothness) == pytest.approx(9.0, rel=1e-6)
    place = {"x": theta["x"] + found.moved["x"]}
    slope, _ = quadratic(*curvatures)(place)
    assert torch.allclose(found.dual["x"], -slope["x"], rtol=1e-9)
    expected = dual["x"] + 9.0 * found.moved["x"]
    assert torch.allclose(found.dual["x"], expected, rtol=1e-9)


@pytest.mark.parametrize("stale", [(500.0, -3.0), (-1.0, 2.0), (0.0, 0.0)])
def test_a_dual_that_no_longer_fits_is_given_up(stale: tuple[float, float]) -> None:
    """−G(θ) = (−1, −2): all of these are farther from it than 0 is, or 0 itself."""
    bend = torch.tensor(1.0).double()
    found = local_duals.solved(quadratic(1.0, 1.0), vector(1.0, 2.0), vector(*stale), bend, 5)
    assert torch.allclose(found.dual["x"], torch.tensor([-1.0, -2.0]).double(), rtol=1e-12)
    assert float(tree.squared_norm(found.moved)) == 0


def test_steps_that_lead_astray_are_not_taken() -> None:
    """A cliff one unit from θ, and an L̂ far too small: L̂ doubles until steps stay on this side."""

    def cliff(theta: Tree) -> tuple[Tree, Tensor]:
        x = theta["x"]
        inside = x > 0
        return {"x": torch.where(inside, 1 + x, torch.nan)}, (x + 0.5 * x.square()).sum()

    bend = torch.tensor(1e-3).double()
    found = local_duals.solved(cliff, vector(1.0), vector(0.0), bend, 14, remember=False)
    assert tree.is_finite(found.dual)
    assert tree.is_finite(found.moved)
    assert float(found.smoothness) >= 1.0
    assert -2.0 <= float(found.dual["x"]) < -1.0  # −G between where it began and the cliff


def test_no_bend_is_no_problem() -> None:
    def slope(theta: Tree) -> tuple[Tree, Tensor]:
        return vector(1.0, -2.0), (theta["x"] * torch.tensor([1.0, -2.0])).sum()

    zero = torch.zeros((), dtype=torch.float64)
    for remember in (True, False):
        found = local_duals.solved(slope, vector(1.0, 1.0), vector(0.0, 0.0), zero, 5, remember)
        assert found.dual["x"].tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("steps", [1, 5, 10])
@pytest.mark.parametrize("lost", [0.0, 0.3, 0.5])
def test_nothing_diverges_when_uploads_are_lost(steps: int, lost: float) -> None:
    """Where the paper's fixed ρ with local steps of 1/ρ does, on the same problem."""
    data = classification()
    model = double(mlp())
    server = replace(ADMMFedMeta().optimizer, longest_step=0.03)
    algorithm = ADMMFedMeta(Adaptation(0.3), local_steps=steps, server=server)
    engine = engine_for(algorithm, data, model, participation=Participation(lost=lost))
    found = trace(engine, model, 40)
    losses = [each["meta_loss"] for each in found.metrics if "meta_loss" in each]
    assert max(losses) < 1.5 * losses[0]
    assert losses[-1] < 0.8 * losses[0]
    assert all(bool(theta.isfinite().all()) for theta in found.theta)


def test_bad_rounds_leave_no_trace_in_duals() -> None:
    """After steps that are far too long the nodes' duals fit again within a few rounds."""
    server = replace(PLAIN.optimizer, first_penalty=0.02, longest_step=50.0)
    engine = engine_for(replace(PLAIN, server=server), FEDERATION, MODEL)
    found = trace(engine, MODEL, 40)
    assert sum(each["rejected"] for each in found.metrics) >= 1
    norms = [each["gradient_norm"] for each in found.metrics]
    losses = [each["meta_loss"] for each in found.metrics]
    assert losses[-1] < losses[0]
    assert norms[-1] < 2 * norms[0]
