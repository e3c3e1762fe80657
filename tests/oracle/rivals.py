"""The slow twin of the rivals: their pseudocode as plain loops on flat float64 vectors.

Independent on purpose, as `twin` is. A node keeps what the paper has it keep, and uploads what the
paper has it upload; weights w_i stand where the papers have 1/N. ``participation[t − 1]`` is S of
round t, None stands for everyone. Each function returns θ after every round, and the nodes'
variables (c_i, h_i or y_i) after the last.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oracle.twin import Loss, Model, OracleNode, grad_L, node_weights

Sets = Sequence[Sequence[int]] | None


class Rounds(NamedTuple):
    """What a run leaves behind."""

    theta: list[Tensor]
    own: list[Tensor]


def fedprox(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    eta: float,
    steps: int,
    mu: float,
    rounds: int,
    participation: Sets = None,
) -> Rounds:
    """FedProx: E steps on L_i(θ_i) + μ/2 ‖θ_i − θ‖², then Σ_S w_i θ_i / Σ_S w_i."""
    w, theta, thetas = node_weights(nodes), theta0.clone(), []
    for S in _sets(nodes, rounds, participation):
        local = {}
        for i in S:
            y = theta.clone()
            for _ in range(steps):
                y = y - eta * (_grad(y, nodes[i], f, loss) + mu * (y - theta))
            local[i] = y
        if S:
            theta = _mean(local, w)
        thetas.append(theta.clone())
    return Rounds(thetas, [])


def scaffold(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    eta: float,
    steps: int,
    rounds: int,
    participation: Sets = None,
) -> Rounds:
    """SCAFFOLD, option II; the platform's c is Σ w_i c_i, formed anew from all nodes' c_i."""
    w, theta, thetas = node_weights(nodes), theta0.clone(), []
    c_i = [torch.zeros_like(theta) for _ in nodes]
    for S in _sets(nodes, rounds, participation):
        c = _sum([w[j] * c_i[j] for j in range(len(nodes))], theta)
        local, changed = {}, {}
        for i in S:
            y = theta.clone()
            for _ in range(steps):
                y = y - eta * (_grad(y, nodes[i], f, loss) - c_i[i] + c)
            local[i] = y
            changed[i] = c_i[i] - c + (theta - y) / (steps * eta)
        for i in S:
            c_i[i] = changed[i]
        if S:
            theta = _mean(local, w)
        thetas.append(theta.clone())
    return Rounds(thetas, c_i)


def feddyn(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    eta: float,
    steps: int,
    alpha: float,
    rounds: int,
    participation: Sets = None,
) -> Rounds:
    """FedDyn: θ⁺ = Σ_S w_i θ_i / Σ_S w_i − h/α, with h = Σ w_i h_i over all nodes."""
    w, theta, thetas = node_weights(nodes), theta0.clone(), []
    h_i = [torch.zeros_like(theta) for _ in nodes]
    for S in _sets(nodes, rounds, participation):
        local = {}
        for i in S:
            y = theta.clone()
            for _ in range(steps):
                y = y - eta * (_grad(y, nodes[i], f, loss) - h_i[i] + alpha * (y - theta))
            local[i] = y
        for i in S:
            h_i[i] = h_i[i] - alpha * (local[i] - theta)
        if S:
            h = _sum([w[j] * h_i[j] for j in range(len(nodes))], theta)
            theta = _mean(local, w) - h / alpha
        thetas.append(theta.clone())
    return Rounds(thetas, h_i)


def fedadmm(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    eta: float,
    steps: int,
    rho: float,
    rounds: int,
    participation: Sets = None,
) -> Rounds:
    """FedADMM: θ⁺ = Σ w_i (θ_i + y_i/ρ) over all nodes, those not counted with their last."""
    w, theta, thetas = node_weights(nodes), theta0.clone(), []
    theta_i = [theta.clone() for _ in nodes]
    y_i = [torch.zeros_like(theta) for _ in nodes]
    for S in _sets(nodes, rounds, participation):
        for i in S:
            at = theta_i[i]
            for _ in range(steps):
                at = at - eta * (_grad(at, nodes[i], f, loss) + y_i[i] + rho * (at - theta))
            theta_i[i] = at
            y_i[i] = y_i[i] + rho * (at - theta)
        theta = _sum([w[j] * (theta_i[j] + y_i[j] / rho) for j in range(len(nodes))], theta)
        thetas.append(theta.clone())
    return Rounds(thetas, y_i)


def _grad(theta: Tensor, node: OracleNode, f: Model, loss: Loss) -> Tensor:
    x, y = torch.cat([node.xs, node.xq]), torch.cat([node.ys, node.yq])
    return grad_L(theta, x, y, f, loss)


def _sets(nodes: Sequence[OracleNode], rounds: int, participation: Sets) -> list[Sequence[int]]:
    everyone = list(range(len(nodes)))
    return [everyone if participation is None else participation[t] for t in range(rounds)]


def _mean(local: dict[int, Tensor], w: Sequence[float]) -> Tensor:
    total = _sum([w[i] * local[i] for i in local], next(iter(local.values())))
    return total / sum(w[i] for i in local)


def _sum(vectors: Sequence[Tensor], like: Tensor) -> Tensor:
    total = torch.zeros_like(like)
    for vector in vectors:
        total = total + vector
    return total
