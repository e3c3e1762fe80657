"""The meta-gradient of a node: the gradient of its loss after adaptation.

    G(θ) = ∇_θ L(φ(θ), D^q) = (I − α∇²L(θ, Dˢ)) ∇L(φ, D^q)

With k adaptation steps θ = φ_0, φ_1, …, φ_k it is the backward recursion
r ← r − α∇²L(φ_j, Dˢ) r from j = k−1 down to 0, started at r = ∇L(φ_k, D^q). The product ∇²L·r is
never a matrix: it is a derivative of the gradient (`exact`), a central difference of two gradients
(`finite-difference`), or left out (`none`, first-order MAML).

With step sizes of their own, α·f for factors f = exp(c·s), the recursion is
r ← r − α∇²L(φ_j, Dˢ)(f ⊙ r), and where s is learned its gradient comes along for free:
G_s = −c Σ_j α f ⊙ g_j ⊙ r_{j+1} with g_j = ∇L(φ_j, Dˢ), summed over a tensor that shares one s.

With a pull λ to θ, steps φ_{j+1} = φ_j − α f ⊙ (g_j + λ(φ_j − θ)), the recursion also takes
αλ f ⊙ r off r, and θ itself receives the sum of what was taken: G = r_0 + Σ_j αλ f ⊙ r_{j+1}.

Where φ has a head of class means (`prototypes`) there are no steps to go back through: G is
differentiated as a whole, through the means as well, whatever the curvature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import require, require_choice, require_positive
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes, adapt, pulled
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, Resplit, Samples, mini_batch, redivided
from fedmeta.core.tree import Tree

Curvature = Literal["exact", "finite-difference", "none"]


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
        resplit: divide a node's samples anew into support and query set: "none", "random" or
            "classes", see `sample_sets`.
    """

    adaptation: Adaptation
    curvature: Curvature = "exact"
    difference: Schedule = InverseSchedule()
    resplit: Resplit = "none"

    def __post_init__(self) -> None:
        require_choice("curvature", self.curvature, get_args(Curvature))
        require_choice("resplit", self.resplit, get_args(Resplit))

    @property
    def passes(self) -> Passes:
        """Gradient passes over the support and the query set; a curvature product counts as two.

        Class means take one over the support set, and back through them is another.
        """
        if self.adaptation.by_means:
            return Passes(support=2 * min(1, self.adaptation.steps), query=1)
        per_step = 1 if self.curvature == "none" else 3
        return Passes(support=per_step * self.adaptation.steps, query=1)


def meta_gradient(
    objective: Objective, rule: MetaGradient, theta: Tree, data: NodeData, facts: Facts
) -> tuple[Tree, Tensor]:
    """G(θ) = ∇_θ L(φ(θ), D^q), and the meta-loss L(φ(θ), D^q).

    Args:
        objective: model and loss.
        rule: inner adaptation and kind of curvature.
        theta: where to take it. Names with the prefix of `step_sizes` are s: they take the place
            of the adaptation's factors, and G has a part for them.
        data: the node's support and query samples; where their labels are local, they are varied.
        facts: the node's random key, and what the difference schedule looks at.
    """
    adaptation, taken = rule.adaptation, []
    theta, steps = step_sizes.split(theta)
    moves, factors = adaptation.moves(theta), adaptation.fitted_factors(theta, steps)
    data = redivided(data, rule.resplit, randomness.fold(facts.key, Purpose.RESPLIT))
    data = objective.varied(data, facts.key)
    closed = objective.closed_form
    size = len(data.support.mask)
    if closed is not None and factors is None and is_one_plain_step(rule, size):
        exact = rule.curvature == "exact"
        return closed.meta_gradient(theta, data, moves, adaptation.step_size, exact)
    if adaptation.by_means:

        def after(point: Tree) -> Tensor:
            phi = adapt(objective, adaptation, point, data.support, facts.key)
            return objective.value(phi, data.query, objective.pass_key(facts.key, Purpose.QUERY, 0))

        whole, value = torch.func.grad_and_value(after)(theta)
        return whole, value
    phi = theta
    for step in range(adaptation.steps):
        batch = mini_batch(data.support, adaptation.batch_size, facts.key, step)
        pass_key = objective.pass_key(facts.key, Purpose.SUPPORT, step)
        gradient, product = _linearise(objective, rule, moves, phi, batch, pass_key, facts)
        gradient = pulled(gradient, adaptation.pull, phi, theta)
        direction = step_sizes.multiplied(factors, gradient)
        taken.append((direction, product))
        phi = tree.descend_some(phi, adaptation.step_size, direction)
    pass_key = objective.pass_key(facts.key, Purpose.QUERY, 0)
    r, loss = objective.gradient(phi, data.query, pass_key)
    slope = tree.zeros_like(steps)  # −G_s / cα
    direct: list[Tree] = []  # f ⊙ r_{j+1}, which the pull hands to θ
    for direction, product in reversed(taken):
        slope = {name: leaf + _along(name, leaf, direction, r) for name, leaf in slope.items()}
        moved = {name: leaf for name, leaf in r.items() if name in moves}
        if rule.curvature != "none":
            curved = product(step_sizes.multiplied(factors, moved))
            r = tree.descend(r, adaptation.step_size, curved)
        if adaptation.pull > 0:
            direct.append(step_sizes.multiplied(factors, moved))
            r = tree.descend_some(r, adaptation.step_size * adaptation.pull, direct[-1])
    for each in direct:
        r = tree.descend_some(r, -adaptation.step_size * adaptation.pull, each)
    rate = adaptation.learning_scale * adaptation.step_size
    return {**r, **{name: -rate * leaf for name, leaf in slope.items()}}, loss


def is_one_plain_step(rule: MetaGradient, samples: int = 0) -> bool:
    """Whether adaptation is one step on all support samples, and its curvature no difference.

    Args:
        rule: how G is computed.
        samples: of the support set; 0: nobody knows.
    """
    inner, size = rule.adaptation, rule.adaptation.batch_size
    full = size is None or size >= samples > 0
    one = inner.method == "gradient" and inner.steps == 1 and inner.pull == 0
    return one and full and rule.curvature != "finite-difference"


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
        return objective.partial_gradient(moves, point, samples, key)

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


def _along(name: str, step: Tensor, direction: Tree, r: Tree) -> Tensor:
    """f ⊙ g ⊙ r of the parameter whose step size is called `name`, summed where it has but one."""
    parameter = name.removeprefix(step_sizes.PREFIX)
    product = direction[parameter] * r[parameter]
    return product if step.shape == product.shape else product.sum()
