"""The mathematics of one node: its loss, and how it adapts a model.

    φ(θ) = θ − α ∇L(θ, Dˢ)                       adaptation to the support set

With step sizes of their own, α·f for factors f = exp(c·s), a step is φ_{j+1} = φ_j − α f ⊙ g_j with
g_j = ∇L(φ_j, Dˢ). The gradient of what follows the adaptation is in `meta_gradient`.

Everything is a pure function of tensors, so it runs for one node or, under `torch.func.vmap`, for
all nodes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import require, require_choice, require_positive, require_whole
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, Samples, mini_batch, union
from fedmeta.core.step_sizes import Learned
from fedmeta.core.tree import Tree


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
        unlearned = self.factors is None and self.learned != "none"
        factors = self.fitted_factors(theta, step_sizes.start(self, theta) if unlearned else None)
        return self if factors is None else replace(self, factors=factors)

    def fitted_factors(self, theta: Tree, steps: Tree | None = None) -> Tree | None:
        """What α is multiplied by for each parameter that moves; None: by nothing.

        Args:
            theta: the model.
            steps: s, in place of the factors that training has found.
        """
        factors = step_sizes.factors(self, steps) if steps else self.factors
        return None if factors is None else step_sizes.checked(factors, theta, self.moves(theta))


RECOMMENDED = Adaptation(step_size=0.3, scope="head")
"""What ADMM-FedMeta takes where nothing else is said: one step of the last layer.

With few samples of few classes that is what must change, and nothing is propagated through other
layers to find it. `fedmeta reproduce ablation` compares it with a step of all layers; α was chosen
on held-out source nodes of three data sets (docs/results.md).
"""

RECOMMENDED_FOR_VALUES = Adaptation(step_size=0.01, scope="head")
"""The same where values are predicted: slopes of squared errors have any size."""


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

    def pass_key(self, key: Tensor | None, purpose: Purpose, step: int) -> Tensor | None:
        """The key of one call of `predict`."""
        if key is None or not self.draws:
            return key
        return randomness.fold(randomness.fold(key, purpose), step)

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

    def partial_gradient(
        self, names: frozenset[str], theta: Tree, samples: Samples, key: Tensor | None = None
    ) -> Tree:
        """∇L(θ, D) by the named parameters; layers that have none of them are not propagated to."""

        def value(some: Tree) -> Tensor:
            return self.value({**theta, **some}, samples, key)

        some = {name: leaf for name, leaf in theta.items() if name in names}
        gradient: Tree = torch.func.grad(value)(some)
        return gradient


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
    moves, factors = adaptation.moves(theta), adaptation.fitted_factors(theta)
    for step in range(first_step, first_step + adaptation.steps):
        batch = mini_batch(support, adaptation.batch_size, key, step)
        pass_key = objective.pass_key(key, Purpose.SUPPORT, step)
        gradient = objective.partial_gradient(moves, theta, batch, pass_key)
        direction = step_sizes.multiplied(factors, gradient)
        theta = tree.descend_some(theta, adaptation.step_size, direction)
    return theta


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
    samples, losses = union(data), []
    for step in range(steps):
        batch = mini_batch(samples, batch_size, key, step)
        pass_key = objective.pass_key(key, Purpose.SUPPORT, step)
        gradient, loss = objective.gradient(theta, batch, pass_key)
        losses.append(loss)
        theta = tree.descend(theta, step_size, gradient)
    return theta, losses[0]
