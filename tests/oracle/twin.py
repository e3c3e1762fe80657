"""The slow twin: sections 1-4 of the method, written for reading and not for speed.

Independent on purpose: only torch and the standard library, nothing from ``fedmeta``. The model
is one flat float64 vector θ. The Hessian is a matrix, formed entry by entry. Nodes keep θ_i and
y_i and upload both, as the paper has it; the platform never sees the shortcut 2yᵗ − yᵗ⁻¹.

The caller gives ``f(theta, x) -> outputs`` and ``loss(outputs, y) -> per-sample losses (n,)``.
Rounds count t = 1..T; θ¹ is ``theta0``. Lists "per round" have T entries; entry t − 1 of
``History.theta`` is θ^{t+1}, the platform's model *after* round t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Model = Callable[[Tensor, Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Curvature = Literal["exact", "finite-difference", "none"]
Platform = Literal["linearised", "proximal"]
Rule = Literal["participants", "stale"]


class OracleNode(NamedTuple):
    """One node's data, without padding: support (xs, ys) and query (xq, yq)."""

    xs: Tensor
    ys: Tensor
    xq: Tensor
    yq: Tensor


@dataclass
class History:
    """What ``admm_fedmeta`` leaves behind; every list has one entry per round t = 1..T."""

    theta: list[Tensor] = field(default_factory=list)  # θ^{t+1}
    y: list[list[Tensor]] = field(default_factory=list)  # y_iᵗ, all nodes
    meta_loss: list[float] = field(default_factory=list)  # Σ w_i L_i(φ_i(θᵗ), D^q_i), all nodes
    primal: list[float] = field(default_factory=list)  # (Σ_S ‖θ_i − θᵗ‖²)^½
    dual: list[float] = field(default_factory=list)  # ‖λ∇D_h(θᵗ) − Σ_S v_i‖
    grad_norm: list[float] = field(default_factory=list)  # ‖−Σ_all y_iᵗ + λ∇D_h(θᵗ)‖


# --- Section 1: the setting ----------------------------------------------------------------------


def paper_delta(t: int) -> float:
    """δ_t = 1/(10t + 100)."""
    return 1 / (10 * t + 100)


def node_weights(nodes: Sequence[OracleNode]) -> list[float]:
    """w_i = D_i / Σ D_j with D_i = |Dˢ_i| + |D^q_i|."""
    D = [len(node.xs) + len(node.xq) for node in nodes]
    return [D_i / sum(D) for D_i in D]


def L(theta: Tensor, x: Tensor, y: Tensor, f: Model, loss: Loss) -> Tensor:  # noqa: N802
    """L_i(θ, D): the mean loss."""
    losses = loss(f(theta, x), y)
    if losses.shape != (len(x),):
        raise ValueError(f"loss must give one value per sample: {tuple(losses.shape)}")
    return losses.mean()


def grad_L(theta: Tensor, x: Tensor, y: Tensor, f: Model, loss: Loss) -> Tensor:  # noqa: N802
    """∇L_i(θ, D)."""
    at = theta.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(L(at, x, y, f, loss), at)
    return gradient.detach()


def hessian_L(theta: Tensor, x: Tensor, y: Tensor, f: Model, loss: Loss) -> Tensor:  # noqa: N802
    """∇²L_i(θ, D), the whole matrix."""
    H: Tensor = torch.autograd.functional.hessian(
        lambda at: L(at, x, y, f, loss), theta.detach().clone()
    )
    return H.detach()


def adapt(
    theta: Tensor,
    node: OracleNode,
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    steps: int = 1,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """The path φ_0 = θ, φ_{j+1} = φ_j − α m∘∇L_i(φ_j, Dˢ): steps + 1 points (also section 3)."""
    m = torch.ones_like(theta) if mask is None else mask.to(theta.dtype)
    phi = [theta.detach().clone()]
    for _ in range(steps):
        phi.append(phi[-1] - alpha * m * grad_L(phi[-1], node.xs, node.ys, f, loss))
    return phi


def G(  # noqa: N802
    theta: Tensor,
    node: OracleNode,
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    curvature: Curvature = "exact",
    delta: float = paper_delta(1),
    steps: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """The meta-gradient G_i(θ), steps 1-3 of section 2.

    Chain rule: with φ_{j+1} = φ_j − α m∘∇L(φ_j, Dˢ) the Jacobian ∂φ_{j+1}/∂φ_j is
    J_j = I − α diag(m) H_j, so G = J_0ᵀ J_1ᵀ … J_{k−1}ᵀ r and, H_j being symmetric,
    J_jᵀ v = v − α H_j (m∘v): the mask acts before the Hessian, not after it.
    """
    m = torch.ones_like(theta) if mask is None else mask.to(theta.dtype)
    # 1. φ = θᵗ − α ∇L_i(θᵗ, Dˢ)
    phi = adapt(theta, node, f, loss, alpha=alpha, steps=steps, mask=mask)
    # 2. r = ∇L_i(φ, D^q)
    r = grad_L(phi[steps], node.xq, node.yq, f, loss)
    # 3. r − αg, g = ∇²L_i(θᵗ, Dˢ) r; for more steps the same from φ_{k−1} back to φ_0 = θᵗ
    v = r
    if curvature == "none":
        return v
    for j in reversed(range(steps)):
        if curvature == "exact":
            H = hessian_L(phi[j], node.xs, node.ys, f, loss)
            J = torch.eye(len(theta), dtype=theta.dtype) - alpha * torch.diag(m) @ H
            v = J.T @ v
        elif curvature == "finite-difference":
            d = m * v
            g_plus = grad_L(phi[j] + delta * d, node.xs, node.ys, f, loss)
            g_minus = grad_L(phi[j] - delta * d, node.xs, node.ys, f, loss)
            v = v - alpha * (g_plus - g_minus) / (2 * delta)
        else:
            raise ValueError(f"unknown curvature: {curvature!r}")
    return v


def meta_loss(
    theta: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    weights: Sequence[float] | None = None,
    steps: int = 1,
    mask: Tensor | None = None,
) -> float:
    """Σ w_i L_i(φ_i(θ), D^q_i), without the regulariser."""
    w = _weights(nodes, weights)
    total = 0.0
    for i, node in enumerate(nodes):
        phi = adapt(theta, node, f, loss, alpha=alpha, steps=steps, mask=mask)
        total += w[i] * float(L(phi[steps], node.xq, node.yq, f, loss))
    return total


def grad_squared_euclidean(theta: Tensor, theta_p: Tensor) -> Tensor:
    """∇D_h(θ, θ_p) = 2(θ − θ_p) for D_h = ‖θ − θ_p‖²."""
    return 2 * (theta - theta_p)


# --- Section 2: ADMM-FedMeta ---------------------------------------------------------------------


def node_round(
    theta: Tensor,
    y_i: Tensor,
    node: OracleNode,
    f: Model,
    loss: Loss,
    *,
    w_i: float,
    rho_i: float,
    alpha: float,
    curvature: Curvature = "exact",
    delta: float = paper_delta(1),
    K: int = 1,
    eta_i: float | None = None,
    steps: int = 1,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Node i's round: from θᵗ and y_i^{t−1} to the two vectors it uploads, θ_i and y_iᵗ."""
    eta = 1 / rho_i if eta_i is None else eta_i
    # 4. θ_i⁰ = θᵗ; θ_i^{k+1} = θ_i^k − η [w_i G_i(θ_i^k) + y_i^{t−1} + ρ_i (θ_i^k − θᵗ)]
    #    (K = 1, η = 1/ρ_i: θ_i = θᵗ − [y_i^{t−1} + w_i G_i(θᵗ)] / ρ_i)
    theta_i = theta
    for _ in range(K):
        G_i = G(
            theta_i,
            node,
            f,
            loss,
            alpha=alpha,
            curvature=curvature,
            delta=delta,
            steps=steps,
            mask=mask,
        )
        theta_i = theta_i - eta * (w_i * G_i + y_i + rho_i * (theta_i - theta))
    # 5. y_iᵗ = y_i^{t−1} + ρ_i (θ_i − θᵗ)
    y_i = y_i + rho_i * (theta_i - theta)
    return theta_i, y_i


def admm_fedmeta(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    rho: Sequence[float],
    rounds: int,
    curvature: Curvature = "exact",
    delta: Callable[[int], float] = paper_delta,
    lam: float = 0.0,
    theta_p: Tensor | None = None,
    grad_D_h: Callable[[Tensor, Tensor], Tensor] = grad_squared_euclidean,
    platform: Platform = "linearised",
    K: int = 1,
    eta: float | Sequence[float] | None = None,
    participation: Sequence[Sequence[int]] | None = None,
    rule: Rule = "participants",
    weights: Sequence[float] | None = None,
    y0: Sequence[Tensor] | None = None,
    steps: int = 1,
    mask: Tensor | None = None,
) -> History:
    """ADMM-FedMeta, rounds t = 1..T; ``participation[t − 1]`` is S, None stands for everyone."""
    _check(theta0, nodes, rho, rounds, participation)
    if platform not in ("linearised", "proximal"):
        raise ValueError(f"unknown platform step: {platform!r}")
    if rule not in ("participants", "stale"):
        raise ValueError(f"unknown participation rule: {rule!r}")
    if lam != 0 and theta_p is None:
        raise ValueError("lam > 0 needs theta_p")
    if platform == "proximal" and grad_D_h is not grad_squared_euclidean:
        raise ValueError("the proximal form is written for ‖θ − θ_p‖² only")

    everyone = list(range(len(nodes)))
    w = _weights(nodes, weights)
    theta = theta0.detach().clone()
    prior = torch.zeros_like(theta) if theta_p is None else theta_p.detach()
    y = [torch.zeros_like(theta) for _ in everyone] if y0 is None else [y_i.clone() for y_i in y0]
    u = [y[i] + rho[i] * theta for i in everyone]  # the last counted u_i; before that y_i⁰ + ρ_iθ⁰
    sum_rho = sum(rho)
    history = History()

    for t in range(1, rounds + 1):
        S = everyone if participation is None else sorted(participation[t - 1])

        # The nodes. One that is not counted keeps its y_i.
        uploads: dict[int, tuple[Tensor, Tensor]] = {}
        for i in S:
            uploads[i] = node_round(
                theta,
                y[i],
                nodes[i],
                f,
                loss,
                w_i=w[i],
                rho_i=rho[i],
                alpha=alpha,
                curvature=curvature,
                delta=delta(t),
                K=K,
                eta_i=_per_node(eta, i),
                steps=steps,
                mask=mask,
            )

        # The platform receives θ_i and y_iᵗ.
        primal_squared = 0.0
        sum_v = torch.zeros_like(theta)
        for i in S:
            theta_i, y_i = uploads[i]
            y[i] = y_i
            u[i] = y_i + rho[i] * theta_i
            primal_squared += float(torch.sum((theta_i - theta) ** 2))
            sum_v = sum_v + (u[i] - rho[i] * theta)
        lam_grad = lam * grad_D_h(theta, prior) if lam != 0 else torch.zeros_like(theta)

        history.meta_loss.append(
            meta_loss(theta, nodes, f, loss, alpha=alpha, weights=w, steps=steps, mask=mask)
        )
        history.primal.append(primal_squared**0.5)
        history.dual.append(float(torch.linalg.vector_norm(lam_grad - sum_v)))
        history.grad_norm.append(float(torch.linalg.vector_norm(-_sum(y, theta) + lam_grad)))

        if len(S) == len(nodes) or rule == "stale":
            # U = Σ_all (y_i + ρ_iθ_i), of this round or, under `stale`, of the last counted one.
            U = _sum(u, theta)
            if platform == "linearised":
                theta = (U - lam_grad) / sum_rho
            else:
                theta = (U + 2 * lam * prior) / (2 * lam + sum_rho)
        else:
            # θ̂ = θᵗ + Σ_S v_i / Σ_S ρ_i; nobody there: θ̂ = θᵗ.
            theta_hat = theta + sum_v / sum(rho[i] for i in S) if S else theta
            if platform == "linearised":
                theta = theta_hat - lam_grad / sum_rho
            else:
                theta = (sum_rho * theta_hat + 2 * lam * prior) / (sum_rho + 2 * lam)

        history.theta.append(theta.clone())
        history.y.append([y_i.clone() for y_i in y])
    return history


def several_local_steps(
    thetas: Sequence[Tensor],
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    K: int,
    participation: Sequence[Sequence[int]],
    duals: bool = True,
) -> list[Tensor]:
    """Σ_S w_i ỹ_i / Σ_S w_i of every round, where nodes find the size of K local steps themselves.

    What the platform makes of it is not its affair: ``thetas[t − 1]`` is the θᵗ that it sent.
    """
    w = node_weights(nodes)
    y = [torch.zeros_like(thetas[0]) for _ in nodes]
    L_hat = [0.0 for _ in nodes]
    means = []
    for theta, S in zip(thetas, participation, strict=True):
        total, weight = torch.zeros_like(theta), 0.0
        for i in sorted(S):
            y[i], L_hat[i] = _one_node(
                theta, y[i], L_hat[i], nodes[i], f, loss, alpha=alpha, K=K, duals=duals
            )
            total, weight = total + w[i] * y[i], weight + w[i]
        means.append(total / weight)
    return means


def _one_node(
    theta: Tensor,
    y: Tensor,
    L_hat: float,
    node: OracleNode,
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    K: int,
    duals: bool,
) -> tuple[Tensor, float]:
    g = [G(theta, node, f, loss, alpha=alpha)]
    at_theta = float(g[0].norm())
    # A dual that is no nearer to −G(θ) than 0 is begins anew; without duals it is always 0.
    before = torch.zeros_like(y)
    if duals:
        before = y if float((y + g[0]).norm()) < at_theta else -g[0]
    limit = float((g[0] + before).norm()) + at_theta
    theta_i, g_i = theta, g[0]
    L_i, looked = 0.9 * L_hat, False
    for _ in range(K - 1):
        if L_i == 0:
            step = -g_i * (1e-3 * float(theta.norm()) / at_theta)
        else:
            step = -(g_i + before + L_i * (theta_i - theta)) / (L_i + L_i)
        trial = theta_i + step
        g_trial = G(trial, node, f, loss, alpha=alpha)
        if float(step.norm()) > 1e-5 * float(theta.norm()):
            looked = True
            L_i = max(L_i, float((g_trial - g_i).norm() / step.norm()))
        if float((g_trial + before + L_i * (trial - theta)).norm()) <= limit:
            theta_i, g_i = trial, g_trial
        else:
            L_i = 2 * L_i
    theta_i = theta_i - (g_i + before + L_i * (theta_i - theta)) / (L_i + L_i)
    return before + L_i * (theta_i - theta), L_i if looked else L_hat


# --- Section 4: the baselines; each returns θ after every round ----------------------------------


def fedavg(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    step_size: float,
    local_steps: int,
    rounds: int,
    participation: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
) -> list[Tensor]:
    """FedAvg: E full-batch steps on Dˢ ∪ D^q, then Σ_S w_i θ_i / Σ_S w_i."""
    _check(theta0, nodes, None, rounds, participation)
    theta = theta0.detach().clone()
    thetas: list[Tensor] = []
    for t in range(1, rounds + 1):
        w = _counted_weights(nodes, weights, participation, t)
        if w:
            average = torch.zeros_like(theta)
            for i, w_i in w.items():
                theta_i = _local_sgd(theta, nodes[i], f, loss, step_size, local_steps)
                average = average + w_i * theta_i
            theta = average
        thetas.append(theta.clone())
    return thetas


def per_fedavg(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    beta: float,
    local_steps: int,
    rounds: int,
    curvature: Curvature = "exact",
    delta: Callable[[int], float] = paper_delta,
    participation: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
    steps: int = 1,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """Per-FedAvg: E local meta-steps θ_i ← θ_i − β G_i(θ_i), then Σ_S w_i θ_i / Σ_S w_i."""
    _check(theta0, nodes, None, rounds, participation)
    theta = theta0.detach().clone()
    thetas: list[Tensor] = []
    for t in range(1, rounds + 1):
        w = _counted_weights(nodes, weights, participation, t)
        if w:
            average = torch.zeros_like(theta)
            for i, w_i in w.items():
                theta_i = theta
                for _ in range(local_steps):
                    theta_i = theta_i - beta * G(
                        theta_i,
                        nodes[i],
                        f,
                        loss,
                        alpha=alpha,
                        curvature=curvature,
                        delta=delta(t),
                        steps=steps,
                        mask=mask,
                    )
                average = average + w_i * theta_i
            theta = average
        thetas.append(theta.clone())
    return thetas


def fedmeta(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    alpha: float,
    beta: float,
    rounds: int,
    curvature: Curvature = "exact",
    delta: Callable[[int], float] = paper_delta,
    optimizer: Literal["sgd", "adam"] = "sgd",
    participation: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
    steps: int = 1,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """FedMeta: θ ← θ − β Σ_S w_i G_i(θ) / Σ_S w_i by server SGD, or Adam with that gradient."""
    _check(theta0, nodes, None, rounds, participation)
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"unknown optimizer: {optimizer!r}")
    b1, b2, eps = 0.9, 0.999, 1e-8
    theta = theta0.detach().clone()
    first, second, s = torch.zeros_like(theta), torch.zeros_like(theta), 0
    thetas: list[Tensor] = []
    for t in range(1, rounds + 1):
        w = _counted_weights(nodes, weights, participation, t)
        if w:
            g = torch.zeros_like(theta)
            for i, w_i in w.items():
                g = g + w_i * G(
                    theta,
                    nodes[i],
                    f,
                    loss,
                    alpha=alpha,
                    curvature=curvature,
                    delta=delta(t),
                    steps=steps,
                    mask=mask,
                )
            if optimizer == "sgd":
                theta = theta - beta * g
            else:
                s = s + 1
                first = b1 * first + (1 - b1) * g
                second = b2 * second + (1 - b2) * g**2
                first_hat = first / (1 - b1**s)
                second_hat = second / (1 - b2**s)
                theta = theta - beta * first_hat / (torch.sqrt(second_hat) + eps)
        thetas.append(theta.clone())
    return thetas


def reptile(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    f: Model,
    loss: Loss,
    *,
    step_size: float,
    epsilon: float,
    local_steps: int,
    rounds: int,
    participation: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
) -> list[Tensor]:
    """Reptile: E full-batch steps on Dˢ ∪ D^q, then θ ← θ + ε Σ_S w_i (θ_i − θ) / Σ_S w_i."""
    _check(theta0, nodes, None, rounds, participation)
    theta = theta0.detach().clone()
    thetas: list[Tensor] = []
    for t in range(1, rounds + 1):
        direction = torch.zeros_like(theta)
        for i, w_i in _counted_weights(nodes, weights, participation, t).items():
            theta_i = _local_sgd(theta, nodes[i], f, loss, step_size, local_steps)
            direction = direction + w_i * (theta_i - theta)
        theta = theta + epsilon * direction
        thetas.append(theta.clone())
    return thetas


# --- Small helpers -------------------------------------------------------------------------------


def _local_sgd(
    theta: Tensor, node: OracleNode, f: Model, loss: Loss, step_size: float, local_steps: int
) -> Tensor:
    x, y = torch.cat([node.xs, node.xq]), torch.cat([node.ys, node.yq])
    theta_i = theta
    for _ in range(local_steps):
        theta_i = theta_i - step_size * grad_L(theta_i, x, y, f, loss)
    return theta_i


def _weights(nodes: Sequence[OracleNode], weights: Sequence[float] | None) -> list[float]:
    w = node_weights(nodes) if weights is None else list(weights)
    if len(w) != len(nodes):
        raise ValueError("one weight per node")
    return w


def _counted_weights(
    nodes: Sequence[OracleNode],
    weights: Sequence[float] | None,
    participation: Sequence[Sequence[int]] | None,
    t: int,
) -> dict[int, float]:
    """w_i / Σ_S w_j for i in S (w_i as it is when everyone takes part)."""
    w = _weights(nodes, weights)
    if participation is None or len(participation[t - 1]) == len(nodes):
        return dict(enumerate(w))
    S = sorted(participation[t - 1])
    return {i: w[i] / sum(w[j] for j in S) for i in S}


def _per_node(eta: float | Sequence[float] | None, i: int) -> float | None:
    return eta if eta is None or isinstance(eta, int | float) else eta[i]


def _sum(vectors: Sequence[Tensor], like: Tensor) -> Tensor:
    total = torch.zeros_like(like)
    for vector in vectors:
        total = total + vector
    return total


def _check(
    theta0: Tensor,
    nodes: Sequence[OracleNode],
    rho: Sequence[float] | None,
    rounds: int,
    participation: Sequence[Sequence[int]] | None,
) -> None:
    if theta0.dtype != torch.float64 or theta0.ndim != 1:
        raise TypeError("theta0 must be a flat float64 vector")
    if rho is not None and (len(rho) != len(nodes) or min(rho) <= 0):
        raise ValueError("one rho > 0 per node")
    if participation is None:
        return
    if len(participation) != rounds:
        raise ValueError("participation must name S for every round")
    for S in participation:
        if len(set(S)) != len(S) or not set(S) <= set(range(len(nodes))):
            raise ValueError(f"not a set of node indices: {S!r}")
