"""A head of class means: the nearest-mean classifier as a value of a network's own last layer.

For a network z = W h + b with features h, the means of the classes of a support set are

    ∇_W Σ_j z_{j,y_j} has the rows S_c = Σ_{j: y_j = c} h_j,   ∇_b the counts n_c,   μ_c = S_c / n_c

so one gradient finds them, whatever the network and however it is computed. With the centre
m = mean_c μ_c, the mean squared distance D² = mean_{a≠b} ‖μ_a − μ_b‖² and τ = α / D²,

    W_c = 2τ(μ_c − m),   b_c = τ(‖m‖² − ‖μ_c‖²)    so that    softmax(z) ∝ exp(−τ‖h − μ_c‖²)

τ makes it free of the features' scale, and needs no spread within a class, so one sample of each is
enough. Classes without a sample get W_c = 0 and b_c = −τ mean_c ‖μ_c − m‖² − 20: the mean over the
others of their z is at least −τ mean_c ‖μ_c − m‖² for every h, so the best of them is always 20
ahead. Where there is a single class, or all means are the same, D² is 0 and τ is 1.

A head that is kept has this added to what was learned. Classes without a sample are as far behind
there, so a node's loss never pushes down what it has not seen: the head that nodes learn together
holds nothing against a class that none of them had.

Snell, Swersky, Zemel, Prototypical Networks for Few-shot Learning, NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree

Predict = Callable[[Tree, Tensor, Tensor | None], Tensor]

BEHIND = 20.0
"""How far the z of a class without samples lies behind the best of the others, at least."""


class Head(NamedTuple):
    """Names of a head's weight matrix (C, d) and bias (C,)."""

    weight: str
    bias: str


def linear_head(theta: Tree, names: frozenset[str]) -> Head:
    """The weight matrix and the bias of a head.

    Args:
        theta: the model.
        names: of the head's parameters, `Adaptation(scope="head").moves(theta)`.

    Example:
        >>> linear_head({"f.weight": torch.ones(3, 2), "f.bias": torch.ones(3)},
        ...     frozenset({"f.weight", "f.bias"}))
        Head(weight='f.weight', bias='f.bias')

    Raises:
        ModelError: where the head is anything else.
    """
    head = {name: tuple(theta[name].shape) for name in theta if name in names}
    matrices = [name for name, shape in head.items() if len(shape) == 2]
    biases = [name for name, shape in head.items() if len(shape) == 1]
    if len(head) == 2 and matrices and biases and head[matrices[0]][0] == head[biases[0]][0]:
        return Head(matrices[0], biases[0])
    found = ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in head.items())
    raise ModelError(
        f"prototypes need a head of one weight matrix and one bias, but it is {found}",
        'end the network with one nn.Linear, and adapt the scope "head"',
    )


def check_linear(predict: Predict, theta: Tree, head: Head, inputs: Tensor) -> None:
    """Refuse a network whose outputs are not those of its head: z(2W, 2b) = 2 z(W, b).

    Args:
        predict: (θ, inputs, key) → outputs.
        theta: the model.
        head: of the model.
        inputs: at least one sample to try it on.

    Raises:
        ModelError: for a softmax or a normalisation after the head, or a head that is tied.
    """
    doubled = {**theta, **{name: 2 * theta[name] for name in head}}
    with torch.no_grad():
        once, twice = predict(theta, inputs, None), predict(doubled, inputs, None)
    room = 1e-3 * float(once.abs().max()) + 1e-6
    wide = once.ndim == 2 and once.shape[1] == len(theta[head.bias])
    if not wide or not torch.allclose(twice, 2 * once, rtol=0.0, atol=room):
        raise ModelError(
            f"prototypes need outputs that are those of {head.weight}, but something follows it "
            "or shares it",
            "end the network with that layer; its loss may hold what followed",
        )


def with_prototypes(
    predict: Predict,
    theta: Tree,
    head: Head,
    support: Samples,
    sharpness: float | Tensor,
    key: Tensor | None = None,
    *,
    kept: bool = False,
) -> Tree:
    """θ with the class means of a support set for a head, or added to it; see the module.

    Args:
        predict: (θ, inputs, key) → outputs, linear in the head.
        theta: the model; its head does not matter where it is replaced.
        head: of the model.
        support: samples with class numbers; the mask may hide some.
        sharpness: α > 0, by how much z of the right class leads at a class mean.
        key: of dropout; None switches it off.
        kept: the means are added to the head; else they take its place.

    Example:
        >>> theta = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
        >>> linear = lambda t, x, key: x @ t["weight"].T + t["bias"]
        >>> support = Samples(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), torch.ones(2))
        >>> phi = with_prototypes(linear, theta, Head("weight", "bias"), support, 4.0)
        >>> linear(phi, torch.tensor([[1.0], [2.0], [3.0]]), None).diff().flatten().tolist()
        [-4.0, 0.0, 4.0]
    """
    if support.labels.is_floating_point():
        raise SettingError(
            "prototypes are means of classes, but the labels are values",
            'adapt by the method "gradient"',
        )

    def named_outputs(some: Tree) -> Tensor:
        outputs = predict({**theta, **some}, support.inputs, key)
        chosen = outputs.gather(1, support.labels.unsqueeze(1)).squeeze(1)
        return (chosen * support.mask).sum()

    sums = torch.func.grad(named_outputs)({name: theta[name] for name in head})
    counts = sums[head.bias]
    present = counts > 0
    share = present.to(counts.dtype) / present.sum()
    means = sums[head.weight] / torch.where(present, counts, 1).unsqueeze(1)
    centre = share @ means
    centred = (means - centre) * present.to(counts.dtype).unsqueeze(1)
    lengths = centred.square().sum(dim=1)
    variance = (share * lengths).sum()  # mean_c ‖μ_c − m‖², and D² = 2 C / (C − 1) times that
    rounding = (8 * torch.finfo(counts.dtype).eps) ** 2 * centre.square().sum()
    several = variance > rounding
    pairs = 2 * present.sum() / (present.sum() - 1).clamp(min=1)
    tau = torch.where(several, sharpness / (pairs * torch.where(several, variance, 1)), 1.0)
    # ‖m‖² − ‖μ_c‖² = −‖μ_c − m‖² − 2 m·(μ_c − m), without the difference of two large numbers.
    offsets = -lengths - 2 * centred @ centre
    bias = torch.where(present, tau * offsets, -tau * variance - BEHIND)
    made = {head.weight: 2 * tau * centred, head.bias: bias}
    return {**theta, **({n: theta[n] + leaf for n, leaf in made.items()} if kept else made)}
