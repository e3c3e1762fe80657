"""What is minimised, exactly: F(θ) = Σ w_i L_i(φ_i(θ), D^q_i) + λD_h(θ, θ_p)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree
from fedmeta.priors import Regularizer


@dataclass(frozen=True, eq=False)
class Problem:
    """The meta-objective of a federation; dropout is off and support sets are taken whole.

    Args:
        objective: model and loss.
        adaptation: how φ_i comes from θ, in full batches.
        data: of the sources, with a node axis.
        weights: w_i, (I,).
        prior: λD_h, or None.
        chunk: nodes that are computed at once; None: all.
    """

    objective: Objective
    adaptation: Adaptation
    data: NodeData
    weights: Tensor
    prior: Regularizer | None = None
    chunk: int | None = None

    def node_value(self, theta: Tree, data: NodeData) -> Tensor:
        """F_i(θ) = L_i(φ_i(θ), D^q) of one node."""
        phi = adapt(self.objective, self.adaptation, theta, data.support)
        return self.objective.value(phi, data.query)

    def node_values(self, local: Tree) -> Tensor:
        """F_i(θ_i) of every source at a point of its own, (I,)."""
        mapped = torch.func.vmap(self.node_value, chunk_size=self.chunk)
        values: Tensor = mapped(local, self.data)
        return values

    def value(self, theta: Tree) -> float:
        """F(θ)."""
        mapped = torch.func.vmap(self.node_value, (None, 0), chunk_size=self.chunk)
        total = (self.weights * mapped(theta, self.data)).sum()
        return float(total if self.prior is None else total + self.prior.value(theta))

    def node_gradients(self, theta: Tree) -> Tree:
        """∇F_i(θ) of every source, with a node axis; exact curvature."""
        slope = torch.func.grad(self.node_value)
        mapped = torch.func.vmap(slope, (None, 0), chunk_size=self.chunk)
        gradients: Tree = mapped(theta, self.data)
        return gradients

    def gradient(self, theta: Tree) -> Tree:
        """∇F(θ) = Σ w_i ∇F_i(θ) + λ∇D_h(θ, θ_p)."""
        total = {
            name: torch.tensordot(self.weights.to(leaf), leaf, 1)
            for name, leaf in self.node_gradients(theta).items()
        }
        return total if self.prior is None else tree.add(total, self.prior.gradient(theta))

    def gradient_norm(self, theta: Tree) -> float:
        """‖∇F(θ)‖, the ε at which θ is a first-order stationary point."""
        return float(tree.squared_norm(self.gradient(theta)).sqrt())


class Differences(NamedTuple):
    """Errors of the central difference in step 3 of the algorithm, per source.

    Args:
        error: ‖[∇L(θ + δr) − ∇L(θ − δr)]/2δ − ∇²L(θ)r‖ with r = ∇L(φ, D^q).
        length: ‖r‖, which β bounds.
    """

    error: tuple[float, ...]
    length: tuple[float, ...]


def difference_errors(problem: Problem, theta: Tree, delta: float) -> Differences:
    """The error that a difference of step δ makes in ∇²L·r at every source.

    With a Hessian that is ζ-Lipschitz it is at most δζ‖r‖²/2, since over the stretch from −δ to δ
    the Hessian is off by ζ|s|‖r‖ and |s| is δ/2 on average; the paper states δζβ².

    Args:
        problem: the federation's objective.
        theta: where.
        delta: δ > 0 of the round.
    """
    objective, moves = problem.objective, problem.adaptation.moves(theta)

    def one(data: NodeData) -> tuple[Tensor, Tensor]:
        phi = adapt(objective, problem.adaptation, theta, data.support)
        r = objective.gradient(phi, data.query)[0]
        r = {name: leaf if name in moves else torch.zeros_like(leaf) for name, leaf in r.items()}
        _, pull_back, *_ = torch.func.vjp(lambda p: objective.gradient(p, data.support)[0], theta)
        ahead, behind = (
            objective.gradient(tree.combine(1.0, theta, side, r), data.support)[0]
            for side in (delta, -delta)
        )
        product = tree.scale(0.5 / delta, tree.subtract(ahead, behind))
        off = tree.subtract(product, pull_back(r)[0])
        return tree.squared_norm(off).sqrt(), tree.squared_norm(r).sqrt()

    error, length = torch.func.vmap(one, chunk_size=problem.chunk)(problem.data)
    return Differences(tuple(error.tolist()), tuple(length.tolist()))


def squared_norms(a: Tree) -> Tensor:
    """‖a_i‖² of every node, (I,).

    Example:
        >>> squared_norms({"a": torch.tensor([[3.0, 4.0], [0.0, 1.0]])})
        tensor([25.,  1.])
    """
    return torch.stack([leaf.flatten(1).square().sum(1) for leaf in a.values()]).sum(0)


def broadcast(numbers: Tensor, leaf: Tensor) -> Tensor:
    """One number per node, in the shape that multiplies a leaf with a node axis."""
    return numbers.reshape(-1, *[1] * (leaf.ndim - 1))
