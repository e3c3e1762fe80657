"""The mathematics of one node: loss, adaptation, meta-gradient.

    φ(θ) = θ − α ∇L(θ, Dˢ)                       adaptation to the support set
    G(θ) = ∇_θ L(φ(θ), D^q) = (I − α∇²L(θ, Dˢ)) ∇L(φ, D^q)      the meta-gradient

With k adaptation steps θ = φ_0, φ_1, …, φ_k the meta-gradient is the backward recursion
r ← r − α∇²L(φ_j, Dˢ) r from j = k−1 down to 0, started at r = ∇L(φ_k, D^q). The product ∇²L·r is
never a matrix: it is a derivative of the gradient (`exact`), a central difference of two gradients
(`finite-difference`), or left out (`none`, first-order MAML).

With step sizes of their own, α·f for factors f = exp(c·s), a step is φ_{j+1} = φ_j − α f ⊙ g_j with
g_j = ∇L(φ_j, Dˢ), the recursion r ← r − α∇²L(φ_j, Dˢ)(f ⊙ r), and where s is learned its gradient
comes along for free: G_s = −c Σ_j α f ⊙ g_j ⊙ r_{j+1}, summed over a tensor that shares one s.

Everything is a pure function of tensors, so it runs for one node or, under `torch.func.vmap`, for
all nodes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import (
    SettingError,
    require,
    require_choice,
    require_positive,
    require_whole,
)
from fedmeta.core.sample_sets import NodeData, Samples, resplit, union
from fedmeta.core.step_sizes import Learned
from fedmeta.core.tree import Tree

Curvature = Literal["exact", "finite-difference", "none"]

# What a random draw is for: folded into a node's key, so that no two draws share a stream.
_SUPPORT, _QUERY, _BATCH, _SPLIT = 1, 2, 3, 5


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
        learned: whether training also learns step sizes α·exp(c·s): "none" (α alone), "tensor"
            (one s for each parameter tensor that moves) or "parameter" (one for each of its
            numbers: Meta-SGD).
        learning_scale: c > 0. A gradient step of size β in s changes log a by c²β times the slope
            of the meta-loss in log a: step sizes are learned c² times as fast as at c = 1. An s
            of one number sees the slope of that number alone, so "parameter" wants a larger c
            than "tensor".
        factors: exp(c·s) by parameter name, what training has found; None is 1 everywhere. They
            are no setting: tables leave them out, and adaptations are equal whatever they are.

    Example:
        >>> Adaptation(step_size=0.1, steps=5, scope="head").steps
        5
    """

    step_size: float = 0.03
    steps: int = 1
    scope: str | tuple[str, ...] = "all"
    batch_size: int | None = None
    learned: Learned = "none"
    learning_scale: float = 1.0
    factors: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_choice("learned", self.learned, get_args(Learned))
        require_positive("learning_scale", self.learning_scale)
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

    def fitted(self, theta: Tree) -> Adaptation:
        """The same with its factors on θ's device and in its dtype; refuses those of another model.

        Where step sizes are learned and there are no factors yet, they are 1.
        """
        found = self.factors
        if found is None and self.learned != "none":
            found = step_sizes.factors(self, step_sizes.start(self, theta))
        if found is None:
            return self
        return replace(self, factors=step_sizes.checked(found, theta, self.moves(theta)))


RECOMMENDED = Adaptation(step_size=0.3, scope="head")
"""What ADMM-FedMeta takes where nothing else is said: one step of the last layer.

With few samples of few classes that is what must change, and nothing is propagated through other
layers to find it. `fedmeta reproduce ablation` compares it with a step of all layers; α was chosen
on held-out source nodes of three data sets (docs/results.md).
"""

RECOMMENDED_FOR_VALUES = Adaptation(step_size=0.01, scope="head")
"""The same where values are predicted: slopes of squared errors have any size."""


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
        resplit: divide a node's samples anew into support and query set, see `sample_sets`.
    """

    adaptation: Adaptation
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()
    resplit: bool = False

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
    moves, factors = adaptation.moves(theta), _factors(adaptation, theta, {})
    for step in range(first_step, first_step + adaptation.steps):
        batch = _batch(support, adaptation.batch_size, key, step)
        stream = objective.stream(key, _SUPPORT, step)
        gradient = _gradient_of(moves, objective, theta, batch, stream)
        theta = _descend(theta, adaptation.step_size, _stretched(factors, gradient))
    return theta


def meta_gradient(
    objective: Objective, rule: MetaGradient, theta: Tree, data: NodeData, facts: Facts
) -> tuple[Tree, Tensor]:
    """G(θ) = ∇_θ L(φ(θ), D^q), and the meta-loss L(φ(θ), D^q).

    Args:
        objective: model and loss.
        rule: inner adaptation and kind of curvature.
        theta: where to take it. Names with the prefix of `step_sizes` are s: they take the place
            of the adaptation's factors, and G has a part for them.
        data: the node's support and query samples.
        facts: the node's random key, and what the difference schedule looks at.
    """
    adaptation, taken = rule.adaptation, []
    theta, steps = step_sizes.split(theta)
    moves, factors = adaptation.moves(theta), _factors(adaptation, theta, steps)
    if rule.resplit:
        data = resplit(data, randomness.fold(facts.key, _SPLIT))
    phi = theta
    for step in range(adaptation.steps):
        batch = _batch(data.support, adaptation.batch_size, facts.key, step)
        stream = objective.stream(facts.key, _SUPPORT, step)
        gradient, product = _linearise(objective, rule, moves, phi, batch, stream, facts)
        direction = _stretched(factors, gradient)
        taken.append((direction, product))
        phi = _descend(phi, adaptation.step_size, direction)
    r, loss = objective.gradient(phi, data.query, objective.stream(facts.key, _QUERY, 0))
    slope = tree.zeros_like(steps)  # −G_s / cα
    for direction, product in reversed(taken):
        slope = {name: leaf + _along(name, leaf, direction, r) for name, leaf in slope.items()}
        if rule.curvature == "none":
            continue
        moved = {name: leaf for name, leaf in r.items() if name in moves}
        r = tree.descend(r, adaptation.step_size, product(_stretched(factors, moved)))
    rate = adaptation.learning_scale * adaptation.step_size
    return {**r, **{name: -rate * leaf for name, leaf in slope.items()}}, loss


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


def _linearise(
    objective: Objective,
    rule: MetaGradient,
    moves: frozenset[str],
    theta: Tree,
    samples: Samples,
    key: Tensor | None,
    facts: Facts,
) -> tuple[Tree, Callable[[Tree], Tree]]:
    """∇L(θ, D) of the parameters that move, and the map r ↦ ∇²L(θ, D) r for an r of those."""

    def moving_gradient(point: Tree) -> Tree:
        return _gradient_of(moves, objective, point, samples, key)

    if rule.curvature == "exact":
        # The Hessian is symmetric, so the pull-back of the gradient map is the product, and it
        # keeps the pass that computed the gradient.
        gradient, pull_back, *_ = torch.func.vjp(moving_gradient, theta)
        return gradient, lambda r: pull_back(r)[0]

    def central_difference(r: Tree) -> Tree:
        delta = rule.difference(facts)
        direction = {n: r[n] if n in r else torch.zeros_like(leaf) for n, leaf in theta.items()}
        ahead, behind = (
            objective.gradient(tree.combine(1.0, theta, side, direction), samples, key)[0]
            for side in (delta, -delta)
        )
        return tree.scale(0.5 / delta, tree.subtract(ahead, behind))

    return moving_gradient(theta), central_difference


def _gradient_of(
    moves: frozenset[str],
    objective: Objective,
    theta: Tree,
    samples: Samples,
    key: Tensor | None,
) -> Tree:
    """∇L(θ, D) of some parameters; nothing is propagated to layers that have none of them."""

    def value(moving: Tree) -> Tensor:
        return objective.value({**theta, **moving}, samples, key)

    moving = {name: leaf for name, leaf in theta.items() if name in moves}
    gradient: Tree = torch.func.grad(value)(moving)
    return gradient


def _factors(adaptation: Adaptation, theta: Tree, steps: Tree) -> Tree | None:
    """What α is multiplied by for each parameter that moves; None: by nothing."""
    given = step_sizes.factors(adaptation, steps) if steps else adaptation.factors
    return None if given is None else step_sizes.checked(given, theta, adaptation.moves(theta))


def _stretched(factors: Tree | None, a: Tree) -> Tree:
    """f ⊙ a where there is a factor, else a."""
    if factors is None:
        return a
    return {name: factors[name] * leaf if name in factors else leaf for name, leaf in a.items()}


def _along(name: str, step: Tensor, direction: Tree, r: Tree) -> Tensor:
    """f ⊙ g ⊙ r of the parameter whose step size is called `name`, summed where it has but one."""
    parameter = name.removeprefix(step_sizes.PREFIX)
    product = direction[parameter] * r[parameter]
    return product if step.shape == product.shape else product.sum()


def _descend(theta: Tree, step_size: float, gradient: Tree) -> Tree:
    """A step of the parameters that have a gradient."""
    return {**theta, **tree.descend({n: theta[n] for n in gradient}, step_size, gradient)}


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
