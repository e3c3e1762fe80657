"""The mathematics of one node: its loss, and how it adapts a model.

    φ(θ) = θ − α ∇L(θ, Dˢ)                       adaptation to the support set

With step sizes of their own, α·f for factors f = exp(c·s), a step is φ_{j+1} = φ_j − α f ⊙ g_j with
g_j = ∇L(φ_j, Dˢ). The gradient of what follows the adaptation is in `meta_gradient`. Without any
step, a head of class means adapts as well: `prototypes`.

Everything is a pure function of tensors, so it runs for one node or, under `torch.func.vmap`, for
all nodes at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from fedmeta.core import prototypes, randomness, step_sizes, tree
from fedmeta.core.errors import require, require_choice, require_positive, require_whole
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, Samples, mini_batch, renamed, union
from fedmeta.core.serialization import LATER
from fedmeta.core.step_sizes import Learned
from fedmeta.core.tree import Tree
from fedmeta.core.turned_classes import turned

Method = Literal["gradient", "prototypes", "head+prototypes"]


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
        step_size: α > 0. Of prototypes it is the sharpness: by how much the output of a class
            leads at its own mean.
        steps: how many gradient steps, ≥ 0. A head of prototypes is set by the first one, and
            further ones change nothing.
        scope: which parameters move: "all", "head" (what produces the output: ANIL), or a tuple of
            name patterns such as ("classifier.*",).
        batch_size: samples per step, drawn anew each step without replacement from the node's
            key; None takes the full support set.
        learned: whether training also learns step sizes α·exp(c·s): "none" (α alone), "tensor"
            (one s for each parameter tensor that moves) or "parameter" (one for each of its
            numbers: Meta-SGD).
        learning_scale: c > 0. A gradient step of size β in s changes log a by c²β times the slope
            of the meta-loss in log a: step sizes are learned c² times as fast as at c = 1. An s
            of one number sees the slope of that number alone, so "parameter" wants a larger c
            than "tensor".
        pull: λ ≥ 0: every step descends L(φ, Dˢ) + λ/2 ‖φ − θ‖², θ being where adaptation started,
            so φ_{j+1} = φ_j − α f ⊙ (g_j + λ(φ_j − θ)); the first step feels nothing of it.
        factors: exp(c·s) by parameter name, what training has found; None is 1 everywhere. They
            are no setting: tables leave them out, and adaptations are equal whatever they are.
        head: names of the parameters that scope "head" means in the network at hand
            (`fedmeta.models.head`); None: those of the last module that has any. No setting either.
        method: "gradient", or "prototypes": no gradient step, but the class means of the support
            set for a head, see `prototypes`; or "head+prototypes", which adds them to the learned
            head. They are those of all samples, with a scope of the head alone.

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
    pull: float = field(default=0.0, metadata=LATER)
    factors: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)
    head: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    method: Method = field(default="gradient", metadata=LATER)

    def __post_init__(self) -> None:
        require_choice("learned", self.learned, get_args(Learned))
        require_positive("learning_scale", self.learning_scale)
        require_positive("step_size", self.step_size)
        require_whole("steps", self.steps, 0)
        require(0 <= self.pull < math.inf, "pull", self.pull, "a number of at least 0")
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
        require_choice("method", self.method, get_args(Method))
        if self.by_means:
            plain = self.learned == "none" and self.factors is None
            require(plain, "learned", self.learned, '"none": prototypes take no steps')
            whole = self.batch_size is None
            require(whole, "batch_size", self.batch_size, "left out: prototypes are of all samples")

    @property
    def by_means(self) -> bool:
        """Whether class means make the head, and no gradient steps."""
        return self.method != "gradient"

    @property
    def keeps_head(self) -> bool:
        """Whether class means are added to the learned head."""
        return self.method == "head+prototypes"

    @property
    def again(self) -> Adaptation:
        """How an adapted model adapts: where means were added to a head, by means alone."""
        return replace(self, method="prototypes") if self.keeps_head else self

    def moves(self, theta: Tree) -> frozenset[str]:
        """Names of the parameters that adaptation changes."""
        names = list(theta)
        if self.scope == "all":
            return frozenset(names)
        if self.scope == "head" and self.head is not None:
            return frozenset(self.head)
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
"""What ADMM-FedMeta takes where nothing else is said: one step of the head.

With few samples of few classes that is what must change, and nothing is propagated through other
layers to find it. `fedmeta reproduce ablation` compares it with a step of all layers; α was chosen
on held-out source nodes of three data sets (docs/results.md), and a run matches it to the size of
the features where these are very large or small, or values are predicted (`training.defaults`).
"""


PROTOTYPES = Adaptation(step_size=4.0, scope="head", method="prototypes")
"""A head of class means, where nothing else is said."""

HEAD_AND_MEANS = replace(PROTOTYPES, method="head+prototypes")
"""Class means added to the trained head, where devices hold few of the classes."""


class Passes(NamedTuple):
    """Cost of one node in one round: gradient passes over its support and over its query set."""

    support: int
    query: int


class ClosedForm(Protocol):
    """A network and a loss whose meta-gradients can be had without differentiating anything."""

    def meta_gradient(
        self,
        theta: Tree,
        data: NodeData,
        moves: frozenset[str],
        step_size: float,
        curved: bool,
    ) -> tuple[Tree, Tensor]:
        """G(θ) after one step of adaptation, and the meta-loss.

        Args:
            theta: where to take it.
            data: of one node.
            moves: names of the parameters that adaptation changes.
            step_size: α.
            curved: with the exact curvature product; otherwise without any.
        """
        ...


@dataclass(frozen=True)
class Objective:
    """A model and a loss: what every node minimises on its own samples.

    Args:
        predict: (θ, inputs, key) → outputs; the key drives dropout, None switches it off.
        loss: (outputs, labels) → one loss per sample.
        draws: whether `predict` looks at the key; if not, none are made for it.
        renames: of how many classes the numbers are drawn anew in training, because they are
            local to a node; 0: of none.
        turns: of how many classes the images are turned anew in training, likewise; 0: of none.
        closed_form: computes meta-gradients in the cases it knows; None: autograd does in all.
    """

    predict: Callable[[Tree, Tensor, Tensor | None], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    draws: bool = True
    renames: int = 0
    turns: int = 0
    closed_form: ClosedForm | None = None

    def varied(self, data: NodeData, key: Tensor) -> NodeData:
        """A node's samples as training sees them: what its classes look like and are called."""
        if self.turns > 0:
            data = turned(data, self.turns, randomness.fold(key, Purpose.TURN))
        if self.renames == 0:
            return data
        return renamed(data, self.renames, randomness.fold(key, Purpose.RENAME))

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
        return self.partial_gradient_and_value(names, theta, samples, key)[0]

    def partial_gradient_and_value(
        self, names: frozenset[str], theta: Tree, samples: Samples, key: Tensor | None = None
    ) -> tuple[Tree, Tensor]:
        """The same, and L(θ, D)."""

        def value(some: Tree) -> Tensor:
            return self.value({**theta, **some}, samples, key)

        some = {name: leaf for name, leaf in theta.items() if name in names}
        gradient, loss = torch.func.grad_and_value(value)(some)
        return gradient, loss


def adapt(
    objective: Objective,
    adaptation: Adaptation,
    theta: Tree,
    support: Samples,
    key: Tensor | None = None,
    first_step: int = 0,
    anchor: Tree | None = None,
) -> Tree:
    """φ: `adaptation.steps` gradient steps from θ on the support set, or its prototypes for a head.

    Without a key dropout is off; mini-batches need one. Steps are counted from `first_step`, so
    that an adaptation may be taken in stretches and draws the batches of one in a single piece;
    `anchor` is then where the first stretch started, which is what `pull` pulls to.
    """
    if adaptation.by_means:
        if adaptation.steps == 0 or (adaptation.keeps_head and first_step > 0):
            return theta  # as it is, or with its means already
        head = prototypes.linear_head(theta, adaptation.moves(theta))
        pass_key = objective.pass_key(key, Purpose.SUPPORT, 0)
        sharpness, kept = adaptation.step_size, adaptation.keeps_head
        return prototypes.with_prototypes(
            objective.predict, theta, head, support, sharpness, pass_key, kept=kept
        )
    moves, factors = adaptation.moves(theta), adaptation.fitted_factors(theta)
    anchor = theta if anchor is None else anchor
    for step in range(first_step, first_step + adaptation.steps):
        batch = mini_batch(support, adaptation.batch_size, key, step)
        pass_key = objective.pass_key(key, Purpose.SUPPORT, step)
        gradient = objective.partial_gradient(moves, theta, batch, pass_key)
        gradient = pulled(gradient, adaptation.pull, theta, anchor)
        direction = step_sizes.multiplied(factors, gradient)
        theta = tree.descend_some(theta, adaptation.step_size, direction)
    return theta


def pulled(gradient: Tree, pull: float, theta: Tree, anchor: Tree) -> Tree:
    """g + λ(θ − anchor) for the parameters that g has; without a λ it is g itself.

    Example:
        >>> one, two = {"a": torch.tensor(1.0)}, {"a": torch.tensor(3.0)}
        >>> pulled({"a": torch.tensor(0.25)}, 0.5, two, one)
        {'a': tensor(1.2500)}
    """
    if pull == 0:
        return gradient
    away = {name: theta[name] - anchor[name] for name in gradient}
    return tree.descend(gradient, -pull, away)


def local_descent(
    objective: Objective,
    theta: Tree,
    data: NodeData,
    steps: int,
    step_size: float,
    batch_size: int | None,
    key: Tensor,
    term: Callable[[Tree], Tree] | None = None,
) -> tuple[Tree, Tensor]:
    """Plain gradient steps on all of a node's samples; also the loss at the start.

    Where there is a `term`, its value at the model reached so far is added to every gradient.
    Class numbers that are local to a node are drawn anew, once for all of the steps.
    """
    samples, losses = union(objective.varied(data, key)), []
    for step in range(steps):
        batch = mini_batch(samples, batch_size, key, step)
        pass_key = objective.pass_key(key, Purpose.SUPPORT, step)
        gradient, loss = objective.gradient(theta, batch, pass_key)
        losses.append(loss)
        if term is not None:
            gradient = tree.add(gradient, term(theta))
        theta = tree.descend(theta, step_size, gradient)
    return theta, losses[0]
