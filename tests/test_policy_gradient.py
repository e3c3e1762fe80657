"""The reinforcement-learning example: its loss is what it says, and one step helps new robots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.core.user_code import load_object

FILE = Path(__file__).parent.parent / "examples" / "policy_gradient.py"


def part(name: str) -> Any:
    return load_object(f"{FILE}:{name}", "example")


def rolled_out() -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    network, steps = part("Rollout")().double(), part("STEPS")
    noises = torch.randn(7, 2 * steps, dtype=torch.float64)
    goals = torch.tensor([0.5, -0.7, 0.0], dtype=torch.float64).repeat(7, steps)
    return network, noises, goals, network(noises)


def test_the_loss_is_the_mean_cost() -> None:
    _, _, goals, outputs = rolled_out()
    steps = part("STEPS")
    places = outputs.reshape(7, steps, 3)[:, :, :2]
    by_hand = (places - goals.reshape(7, steps, 3)[:, :, :2]).square().sum(2).mean(1)
    assert torch.allclose(part("cost")(outputs, goals), by_hand, rtol=1e-12)


def test_its_gradient_is_reinforce_with_the_baseline() -> None:
    network, _, goals, outputs = rolled_out()
    steps, sigma = part("STEPS"), part("SIGMA")
    found = torch.autograd.grad(part("cost")(outputs, goals).mean(), list(network.parameters()))

    places = outputs.detach().reshape(7, steps, 3)[:, :, :2]
    states = torch.cat([torch.zeros(7, 1, 2, dtype=torch.float64), places], 1)
    costs = (states - goals[0, :2]).square().sum(2)  # with that of the start
    surrogate = torch.zeros((), dtype=torch.float64)
    for t in range(steps):
        mean = network.policy(states[:, t])
        action = states[:, t + 1] - states[:, t]
        to_go = costs[:, t + 1 :].sum(1) - (steps - t) * costs[:, t]
        surrogate = (
            surrogate - ((action - mean).square().sum(1) / (2 * sigma**2) * to_go / steps).mean()
        )
    by_hand = torch.autograd.grad(surrogate, list(network.parameters()))
    for a, b in zip(found, by_hand, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_few_rounds_run_and_draw(tmp_path: Path) -> None:
    before, after = part("main")(str(tmp_path / "walks.png"), rounds=2)
    assert len(before) == len(after) == part("TARGETS")
    assert (tmp_path / "walks.png").stat().st_size > 10_000


@pytest.mark.slow
def test_one_step_helps_nearly_every_new_robot(tmp_path: Path) -> None:
    before, after = part("main")(str(tmp_path / "walks.png"))
    assert after.mean() > before.mean() + 0.2
    assert (after > before).sum() >= len(before) - 1
