"""Slow twins of the personalised algorithms: plain loops over flat float64 vectors.

Independent like `oracle.twin`, whose gradient and weights they use: nothing of ``fedmeta``.
``head`` is a vector of the model's length, 1 where a number belongs to the head and 0 elsewhere.
Every function returns θ after every round and, where nodes remember something, what each of them
holds in the end.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from oracle.twin import Loss, Model, OracleNode, grad_L, node_weights


def prox(
    w: Tensor, x: Tensor, y: Tensor, f: Model, loss: Loss, *, alpha: float, lam: float, steps: int
) -> Tensor:
    """Gradient steps from w on L(φ) + λ/2 ‖φ − w‖²."""
    phi = w.clone()
    for _ in range(steps):
        phi = phi - alpha * (grad_L(phi, x, y, f, loss) + lam * (phi - w))
    return phi


def ditto(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    counted: Sequence[Sequence[int]],
    eta: float,
    local_steps: int,
    lam: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Ditto: FedAvg's θ, and v_i of every node."""
    theta, v, thetas = theta0.clone(), [theta0.clone() for _ in nodes], []
    for members in counted:
        local = {}
        for i in members:
            x, y = _all(nodes[i])
            theta_i = theta.clone()
            for _ in range(local_steps):
                theta_i = theta_i - eta * grad_L(theta_i, x, y, f, loss)
            for _ in range(local_steps):
                v[i] = v[i] - eta * (grad_L(v[i], x, y, f, loss) + lam * (v[i] - theta))
            local[i] = theta_i
        theta = _average(theta, local, nodes)
        thetas.append(theta)
    return thetas, v


def pfedme(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    counted: Sequence[Sequence[int]],
    eta: float,
    local_rounds: int,
    alpha: float,
    lam: float,
    steps: int,
    beta: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """pFedMe with full batches."""
    theta, thetas = theta0.clone(), []
    for members in counted:
        local = {}
        for i in members:
            x, y = _all(nodes[i])
            w = theta.clone()
            for _ in range(local_rounds):
                phi = prox(w, x, y, f, loss, alpha=alpha, lam=lam, steps=steps)
                w = w - eta * lam * (w - phi)
            local[i] = w
        theta = (1 - beta) * theta + beta * _average(theta, local, nodes)
        thetas.append(theta)
    return thetas, []


def fedrep(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    counted: Sequence[Sequence[int]],
    head: Tensor,
    eta: float,
    head_steps: int,
    body_steps: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """FedRep: θ is the common body with the initial head, a node holds (0 for the body and) h_i."""
    body, h, thetas = theta0 * (1 - head), [theta0 * head for _ in nodes], []
    for members in counted:
        local = {}
        for i in members:
            x, y = _all(nodes[i])
            for _ in range(head_steps):
                h[i] = h[i] - eta * head * grad_L(body + h[i], x, y, f, loss)
            mine = body.clone()
            for _ in range(body_steps):
                mine = mine - eta * (1 - head) * grad_L(mine + h[i], x, y, f, loss)
            local[i] = mine
        body = _average(body, local, nodes)
        thetas.append(body + theta0 * head)
    return thetas, h


def fedbabu(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    counted: Sequence[Sequence[int]],
    head: Tensor,
    eta: float,
    local_steps: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """FedBABU: the head stays, the body is averaged."""
    theta, thetas = theta0.clone(), []
    for members in counted:
        local = {}
        for i in members:
            x, y = _all(nodes[i])
            theta_i = theta.clone()
            for _ in range(local_steps):
                theta_i = theta_i - eta * (1 - head) * grad_L(theta_i, x, y, f, loss)
            local[i] = theta_i
        theta = _average(theta, local, nodes)
        thetas.append(theta)
    return thetas, []


def _all(node: OracleNode) -> tuple[Tensor, Tensor]:
    return torch.cat([node.xs, node.xq]), torch.cat([node.ys, node.yq])


def _average(theta: Tensor, local: dict[int, Tensor], nodes: Sequence[OracleNode]) -> Tensor:
    """Σ_S w_i θ_i / Σ_S w_i; θ where nobody was counted."""
    w = node_weights(nodes)
    total = sum(w[i] for i in local)
    if not local:
        return theta
    mean = torch.zeros_like(theta)
    for i, vector in local.items():
        mean = mean + w[i] / total * vector
    return mean
