"""Two problems whose constants are known for every θ, and runs of the engine on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.core.meta_gradient import InverseSchedule
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import Tree
from fedmeta.data import Federation
from fedmeta.data.packing import pack
from fedmeta.models import losses
from fedmeta.models.losses import Loss
from fedmeta.priors import SquaredEuclidean
from fedmeta.theory.bounds import Sizes
from fedmeta.theory.closed_form import elementwise_max, softmax_regression
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.lagrangian import Snapshot, snapshot
from fedmeta.theory.problem import Problem
from problems import PLAIN, classification, double, engine_for, paper_admm

ALPHA = 0.1


def sigmoid_squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """(s(z) − y)² with y ∈ {0, 1}: smooth, bounded, and not convex in z."""
    return (torch.sigmoid(outputs[:, 0]) - labels).square()


def _largest(*coefficients: float) -> float:
    """max |p(s)| over 0 ≤ s ≤ 1, highest power first: at an end or where p' = 0."""
    flat = np.roots(np.polyder(coefficients))
    inside = [r.real for r in flat if abs(r.imag) < 1e-12 and 0 <= r.real <= 1]
    return float(max(abs(np.polyval(coefficients, s)) for s in (0.0, 1.0, *inside)))


# ℓ(z) = s² for y = 0 with s = s(z), s' = s(1 − s); y = 1 is its mirror image. By the chain rule
#   ℓ'   = 2s·s(1 − s)                    = −2s³ + 2s²
#   ℓ''  = (−6s² + 4s)·s(1 − s)           =  6s⁴ − 10s³ + 4s²
#   ℓ''' = (24s³ − 30s² + 8s)·s(1 − s)    = −24s⁵ + 54s⁴ − 38s³ + 8s²
FIRST = _largest(-2, 2, 0, 0)
SECOND = _largest(6, -10, 4, 0, 0)
THIRD = _largest(-24, 54, -38, 8, 0, 0)


def sigmoid_constants(data: NodeData) -> NodeConstants:
    """With S = mean x̃x̃ᵀ, s its largest eigenvalue, R = max‖x̃‖.

    The Hessian is mean ℓ''x̃x̃ᵀ and its derivative along d is mean ℓ'''⟨x̃, d⟩x̃x̃ᵀ, so μ = max|ℓ''|·s
    and ζ = max|ℓ'''|·R·s; the gradient is mean ℓ'x̃, at most max|ℓ'|·√s by Cauchy-Schwarz.
    """
    largest = NodeConstants(0.0, 0.0, 0.0)
    for samples in data:
        rows = samples.inputs[samples.mask > 0]
        x = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
        squares = x.square().sum(1)
        s = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1])
        found = NodeConstants(
            smoothness=SECOND * s,
            gradient=FIRST * sqrt(s),
            hessian=THIRD * sqrt(float(squares.max())) * s,
            gradient_deviation=FIRST * sqrt(float(squares.mean())),
            hessian_deviation=SECOND * sqrt(float(squares.square().mean())),
        )
        largest = elementwise_max(largest, found)
    return largest


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    federation: Federation
    outputs: int
    loss: Loss
    closed: Callable[[NodeData], NodeConstants]
    definite: bool  # whether Hessians are semidefinite: their difference is then at most the larger

    @property
    def module(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(3, self.outputs)).double()

    @property
    def theta(self) -> Tree:
        return double(self.module).theta

    @property
    def objective(self) -> Objective:
        return Objective(double(self.module), self.loss)

    @property
    def data(self) -> NodeData:
        return pack(self.federation, self.federation.sources, PLAIN, torch.float64)

    @property
    def target(self) -> NodeData:
        whole = pack(self.federation, self.federation.targets, PLAIN, torch.float64)
        return NodeData(*(Samples(*(leaf[0] for leaf in part)) for part in whole))

    @property
    def weights(self) -> list[float]:
        sizes = [node.size for node in self.federation.sources]
        return [size / sum(sizes) for size in sizes]

    @property
    def sizes(self) -> list[Sizes]:
        return [Sizes(len(n.support), len(n.query)) for n in self.federation.sources]

    def constants(self, alpha: float = ALPHA) -> Constants:
        target = self.closed(self.target)
        nodes = []
        for position in range(len(self.weights)):
            found = self.closed(node_of(self.data, position))
            both = target.smoothness, found.smoothness
            fields = {n: getattr(found, n) for n in NodeConstants.__dataclass_fields__}
            fields["gradient_gap"] = target.gradient + found.gradient
            fields["hessian_gap"] = max(both) if self.definite else sum(both)
            nodes.append(NodeConstants(**fields))
        return Constants(tuple(nodes), alpha, closed_form=True, target=target)

    def problem(self, prior: SquaredEuclidean | None = None, alpha: float = ALPHA) -> Problem:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return Problem(self.objective, Adaptation(alpha), self.data, weights, prior)


def node_of(data: NodeData, position: int) -> NodeData:
    return NodeData(*(Samples(*(leaf[position] for leaf in part)) for part in data))


SOFTMAX = Case(
    "softmax regression",
    classification(seed=1),
    3,
    losses.cross_entropy,
    softmax_regression,
    definite=True,
)
SIGMOID = Case(
    "sigmoid squared",
    classification(classes=2, seed=2),
    1,
    sigmoid_squared,
    sigmoid_constants,
    definite=False,
)
CASES = [SOFTMAX, SIGMOID]


def prior_of(case: Case, strength: float) -> SquaredEuclidean:
    return SquaredEuclidean(strength, {n: leaf + 0.3 for n, leaf in case.theta.items()})


def run(
    case: Case,
    penalties: Sequence[float],
    rounds: int,
    alpha: float = ALPHA,
    theta: Tree | None = None,
    **settings: Any,
) -> list[Snapshot]:
    """Rounds of ADMM-FedMeta on the local engine, as snapshots."""
    names = [node.name for node in case.federation.sources]
    rhos = dict(zip(names, penalties, strict=True))
    settings = {"curvature": "exact", **settings}
    algorithm = paper_admm(Adaptation(alpha), rhos, **settings)
    model = double(case.module)
    engine = engine_for(algorithm, case.federation, model, loss=case.loss)
    state, nodes = engine.start(model.theta if theta is None else theta)
    taken, rho = [], torch.tensor(penalties, dtype=torch.float64)
    for number in range(1, rounds + 1):
        sent = {n: leaf.clone() for n, leaf in state.theta.items()}
        before = {n: leaf.clone() for n, leaf in nodes["dual"].items()}
        state, nodes, _ = engine.round(state, nodes, number)
        taken.append(snapshot(sent, before, nodes["dual"], rho))
    return taken


SUMMABLE = InverseSchedule(growth=1.0, offset=2.0, power=1.5)
