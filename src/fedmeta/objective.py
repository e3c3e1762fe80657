"""The mathematics of one node: loss, adaptation, meta-gradient.

    φ(θ) = θ − α ∇L(θ, Dˢ)                       adaptation to the support set
    G(θ) = ∇_θ L(φ(θ), D^q) = (I − α∇²L(θ, Dˢ)) ∇L(φ, D^q)      the meta-gradient

With k adaptation steps θ = φ_0, φ_1, …, φ_k the meta-gradient is the backward recursion
r ← r − α∇²L(φ_j, Dˢ) r from j = k−1 down to 0, started at r = ∇L(φ_k, D^q). The product ∇²L·r is
never a matrix: it is a derivative of the gradient (`exact`), a central difference of two gradients
(`finite-difference`), or left out (`none`, first-order MAML).

Everything is a pure function of tensors, so it runs for one node or, under `torch.func.vmap`, for
all nodes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fedmeta import randomness, tree
from fedmeta.data.packing import NodeData, Samples
from fedmeta.errors import SettingError, require, require_choice, require_positive, require_whole
from fedmeta.tree import Tree

Curvature = Literal["exact", "finite-difference", "none"]

# What a random draw is for: folded into a node's key, so that no two draws share a stream.
_SUPPORT, _QUERY, _BATCH = 1, 2, 3


class Facts(NamedTuple):
    """What a node knows of itself and of the round, as tensors (with a node axis when batched).

    Args:
        weight: w_i, the node's share of all source samples.
        penalty: ρ_i of ADMM; w_i for algorithms that average.
        round: t, counted from 1, in the dtype of θ.
        position: the node's place among the sources, for schedules that differ by node.
        key: the node's random key of this round.
    """

    weight: Tensor
    penalty: Tensor
    round: Tensor
    position: Tensor
    key: Tensor


@dataclass(frozen=True)
class Adaptation:
    """How a node adapts the meta-model to its support set: `steps` gradient steps of size α.

    The same object serves training, evaluation and the adapted model of a target.

    Args:
        step_size: α > 0.
        steps: how many gradient steps, ≥ 0.
        scope: which parameters move: "all", "head" (the last module that has parameters: ANIL), or
            a tuple of name patterns such as ("classifier.*",).
        batch_size: samples per step, drawn anew each step without replacement from the node's
            key; None takes the full support set.

    Example:
        >>> Adaptation(step_size=0.1, steps=5, scope="head").steps
        5
    """

    step_size: float = 0.03
    steps: int = 1
    scope: str | tuple[str, ...] = "all"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_positive("step_size", self.step_size)
        require_whole("steps", self.steps, 0)
        require(
            self.batch_size is None or self.batch_size >= 1,
            "batch_size",
            self.batch_size,
            "a whole number of at least 1, or leave it out for full batches",
        )
        patterns = isinstance(self.scope, tuple) and len(self.scope) > 0
        require(
            self.scope in ("all", "head") or patterns,
            "scope",
            self.scope,
            '"all", "head" or a list of parameter name patterns',
        )

    def moves(self, theta: Tree) -> frozenset[str]:
        """Names of the parameters that adaptation changes."""
        names = list(theta)
        if self.scope == "all":
            return frozenset(names)
        if self.scope == "head":
            head = names[-1].rpartition(".")[0]
            return frozenset(name for name in names if name.rpartition(".")[0] == head)
        moving = frozenset(
            name for name in names if any(fnmatchcase(name, pattern) for pattern in self.scope)
        )
        require(bool(moving), "scope", self.scope, f"patterns that match one of {', '.join(names)}")
        return moving


@dataclass(frozen=True)
class InverseSchedule:
    """δ_t = 1 / (growth·t + offset)^power, the step of the central difference.

    The paper's is growth 10, offset 100, power 1; it is not summable, which its theorem asks for.
    Any power > 1 is. Any callable from `Facts` to a tensor may stand in its place, also one that
    differs from node to node through `facts.position`.

    Example:
        >>> t = torch.tensor(10.0)
        >>> InverseSchedule()(Facts(t, t, t, t, t))
        tensor(0.0050)
    """

    growth: float = 10.0
    offset: float = 100.0
    power: float = 1.0

    def __post_init__(self) -> None:
        require(self.growth >= 0, "difference.growth", self.growth, "a number of at least 0")
        require_positive("difference.offset", self.offset)
        require_positive("difference.power", self.power)

    def __call__(self, facts: Facts) -> Tensor:
        """δ_t for the node and round of `facts`."""
        return (self.growth * facts.round + self.offset) ** -self.power


Schedule = InverseSchedule | Callable[[Facts], Tensor]


@dataclass(frozen=True)
class MetaGradient:
    """How G is computed: the adaptation it differentiates through, and the curvature product.

    Args:
        adaptation: α, steps and scope of the inner adaptation.
        curvature: "exact", "finite-difference" or "none".
        difference: δ_{i,t} for "finite-difference".
    """

    adaptation: Adaptation
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()

    def __post_init__(self) -> None:
        require_choice("curvature", self.curvature, get_args(Curvature))

    @property
    def passes(self) -> Passes:
        """Gradient passes over the support and the query set; a curvature product counts as two."""
        per_step = 1 if self.curvature == "none" else 3
        return Passes(support=per_step * self.adaptation.steps, query=1)


class Passes(NamedTuple):
    """Cost of one node in one round: gradient passes over its support and over its query set."""

    support: int
    query: int


@dataclass(frozen=True)
class Objective:
    """A model and a loss: what every node minimises on its own samples.

    Args:
        predict: (θ, inputs, key) → outputs; the key drives dropout, None switches it off.
        loss: (outputs, labels) → one loss per sample.
        draws: whether `predict` looks at the key; if not, none are made for it.
    """

    predict: Callable[[Tree, Tensor, Tensor | None], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    draws: bool = True

    def stream(self, key: Tensor | None, purpose: int, step: int) -> Tensor | None:
        """The key of one call of `predict`."""
        return _stream(key, purpose, step) if self.draws else key

    def value(self, theta: Tree, samples: Samples, key: Tensor | None = None) -> Tensor:
        """L(θ, D): the mean loss over the samples that the mask lets through."""
        losses = self.loss(self.predict(theta, samples.inputs, key), samples.labels)
        return (losses * samples.mask).sum() / samples.mask.sum()

    def gradient(
        self, theta: Tree, samples: Samples, key: Tensor | None = None
    ) -> tuple[Tree, Tensor]:
        """∇L(θ, D) and L(θ, D)."""
        gradient, value = torch.func.grad_and_value(self.value)(theta, samples, key)
        return gradient, value


def adapt(
    objective: Objective,
    adaptation: Adaptation,
    theta: Tree,
    support: Samples,
    key: Tensor | None = None,
    first_step: int = 0,
) -> Tree:
    """φ: `adaptation.steps` gradient steps from θ on the support set.

    Without a key dropout is off; mini-batches need one. Steps are counted from `first_step`, so
    that an adaptation may be taken in stretches and draws the batches of one in a single piece.
    """
    moves = adaptation.moves(theta)
    for step in range(first_step, first_step + adaptation.steps):
        batch = _batch(support, adaptation.batch_size, key, step)
        gradient, _ = objective.gradient(theta, batch, objective.stream(key, _SUPPORT, step))
        theta = _descend(theta, adaptation.step_size, gradient, moves)
    return theta


def meta_gradient(
    objective: Objective, rule: MetaGradient, theta: Tree, data: NodeData, facts: Facts
) -> tuple[Tree, Tensor]:
    """G(θ) = ∇_θ L(φ(θ), D^q), and the meta-loss L(φ(θ), D^q).

    Args:
        objective: model and loss.
        rule: inner adaptation and kind of curvature.
        theta: where to take it.
        data: the node's support and query samples.
        facts: the node's random key, and what the difference schedule looks at.
    """
    adaptation, products = rule.adaptation, []
    moves = adaptation.moves(theta)
    phi = theta
    for step in range(adaptation.steps):
        batch = _batch(data.support, adaptation.batch_size, facts.key, step)
        stream = objective.stream(facts.key, _SUPPORT, step)
        gradient, product = _linearise(objective, rule, phi, batch, stream, facts)
        products.append(product)
        phi = _descend(phi, adaptation.step_size, gradient, moves)
    r, loss = objective.gradient(phi, data.query, objective.stream(facts.key, _QUERY, 0))
    if rule.curvature == "none":
        return r, loss
    for product in reversed(products):
        moved = {n: leaf if n in moves else torch.zeros_like(leaf) for n, leaf in r.items()}
        r = tree.descend(r, adaptation.step_size, product(moved))
    return r, loss


def local_descent(
    objective: Objective,
    theta: Tree,
    data: NodeData,
    steps: int,
    step_size: float,
    batch_size: int | None,
    key: Tensor,
) -> tuple[Tree, Tensor]:
    """Plain gradient steps on all of a node's samples; also the loss at the start."""
    samples, first = union(data), None
    for step in range(steps):
        batch = _batch(samples, batch_size, key, step)
        gradient, loss = objective.gradient(theta, batch, objective.stream(key, _SUPPORT, step))
        first = loss if first is None else first
        theta = tree.descend(theta, step_size, gradient)
    assert first is not None, "algorithms check that there is at least one step"
    return theta, first


def union(data: NodeData) -> Samples:
    """All samples of a node, support first; padding moves to the end.

    There it shifts no row of a real sample, so that mini-batches and dropout masks are those of
    the node without padding.
    """
    joined = Samples(*(torch.cat(parts) for parts in zip(*data, strict=True)))
    order = torch.argsort((joined.mask == 0).to(torch.int8), stable=True)
    return Samples(*(part[order] for part in joined))


def _linearise(
    objective: Objective,
    rule: MetaGradient,
    theta: Tree,
    samples: Samples,
    key: Tensor | None,
    facts: Facts,
) -> tuple[Tree, Callable[[Tree], Tree]]:
    """∇L(θ, D) and the map r ↦ ∇²L(θ, D) r."""

    def gradient_at(point: Tree) -> Tree:
        return objective.gradient(point, samples, key)[0]

    if rule.curvature == "exact":
        # The Hessian is symmetric, so the pull-back of the gradient map is the product, and it
        # keeps the pass that computed the gradient.
        gradient, pull_back, *_ = torch.func.vjp(gradient_at, theta)
        return gradient, lambda r: pull_back(r)[0]

    def central_difference(r: Tree) -> Tree:
        delta = rule.difference(facts)
        ahead = gradient_at(tree.combine(1.0, theta, delta, r))
        behind = gradient_at(tree.combine(1.0, theta, -delta, r))
        return tree.scale(0.5 / delta, tree.subtract(ahead, behind))

    return gradient_at(theta), central_difference


def _descend(theta: Tree, step_size: float, gradient: Tree, moves: frozenset[str]) -> Tree:
    moved = tree.descend(
        {name: theta[name] for name in theta if name in moves}, step_size, gradient
    )
    return {name: moved.get(name, leaf) for name, leaf in theta.items()}


def _stream(key: Tensor | None, purpose: int, step: int) -> Tensor | None:
    return None if key is None else randomness.fold(randomness.fold(key, purpose), step)


def _batch(samples: Samples, size: int | None, key: Tensor | None, step: int) -> Samples:
    """A random mini-batch of real samples; padding is drawn only where real ones run out."""
    if size is None or size >= len(samples.mask):
        return samples
    stream = _stream(key, _BATCH, step)
    if stream is None:
        raise SettingError("mini-batches were asked for without a random key", "pass a key")
    draws = randomness.uniform(stream, len(samples.mask)) + (samples.mask == 0)
    # In the samples' own order: a row's dropout mask goes by its place.
    chosen = torch.argsort(draws, stable=True)[:size].sort().values
    return Samples(*(part[chosen] for part in samples))
