"""The slow twin of prototypes: features and class means written out, one class at a time.

Independent on purpose: only torch and the standard library, nothing from ``fedmeta``. The features
are a function ``h(theta, x)`` of one flat vector that holds everything but the head.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Features = Callable[[Tensor, Tensor], Tensor]


def class_means(h: Tensor, y: Tensor) -> dict[int, Tensor]:
    """μ_c = mean of the h_j with y_j = c, for every class that has one."""
    return {c: h[y == c].mean(dim=0) for c in sorted(set(y.tolist()))}


def logits(h: Tensor, means: dict[int, Tensor], classes: int, alpha: float) -> Tensor:
    """−τ‖h − μ_c‖² for the classes with a mean, up to one number per sample; below for others.

    τ = α / D² with D² the mean of ‖μ_a − μ_b‖² over pairs a ≠ b (τ = 1 for a single class); the
    number is τ‖h − m‖² with m the mean of the means. Others: −τ mean ‖μ_c − m‖² − 20.
    """
    some = list(means.values())
    m = torch.stack(some).mean(dim=0)
    pairs = [((a - b) ** 2).sum() for i, a in enumerate(some) for b in some[i + 1 :]]
    tau = alpha / torch.stack(pairs).mean() if pairs else torch.ones((), dtype=h.dtype)
    spread = torch.stack([((mu - m) ** 2).sum() for mu in some]).mean()
    columns = []
    for c in range(classes):
        if c in means:
            near, centre = ((h - means[c]) ** 2).sum(dim=1), ((h - m) ** 2).sum(dim=1)
            columns.append(tau * (centre - near))
        else:
            columns.append((-tau * spread - 20).expand(len(h)))
    return torch.stack(columns, dim=1)


def query_gradient(
    theta: Tensor,
    f: Features,
    support: Sequence[Tensor],
    query: Sequence[Tensor],
    classes: int,
    alpha: float,
) -> tuple[Tensor, float]:
    """∇_θ of the mean cross-entropy of the query set under the support set's means, and its value.

    The gradient goes through the features of both sets.
    """
    at = theta.detach().clone().requires_grad_()
    z = logits(f(at, query[0]), class_means(f(at, support[0]), support[1]), classes, alpha)
    p = torch.log_softmax(z, dim=1)
    value = -torch.stack([p[j, y] for j, y in enumerate(query[1].tolist())]).mean()
    (gradient,) = torch.autograd.grad(value, at)
    return gradient.detach(), float(value.detach())
