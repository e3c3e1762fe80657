"""Constants estimated from data, at given points: lower bounds of the true ones, never more.

Curvature is never a matrix: ‖∇²L‖ comes from power iteration with Hessian-vector products. What a
supremum over all θ may be beyond the points looked at, no estimate can say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from fedmeta import randomness, tree
from fedmeta.data.packing import NodeData, Samples
from fedmeta.errors import SettingError, require_positive, require_whole
from fedmeta.objective import Adaptation, Objective, adapt
from fedmeta.sample_sets import union
from fedmeta.theory.closed_form import greater
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.tree import Tree, map_leaves

Product = Callable[[Tree], Tree]
"""A symmetric linear map, as a Hessian is."""


@dataclass(frozen=True)
class Search:
    """How hard the estimates are looked for.

    Args:
        seed: of the directions that searches start from.
        iterations: of one power iteration, at most.
        tolerance: relative growth below which a power iteration ends.
        reach: distance between the points of a difference of Hessians, in parameters.
        turns: how often the direction of that difference is improved.
        samples: of a node that σʰ looks at, at most: it takes a power iteration for each.
    """

    seed: int = 0
    iterations: int = 60
    tolerance: float = 1e-6
    reach: float = 1e-2
    turns: int = 4
    samples: int = 16

    def __post_init__(self) -> None:
        for name in ("iterations", "turns", "samples"):
            require_whole(name, getattr(self, name), 1)
        require_positive("tolerance", self.tolerance)
        require_positive("reach", self.reach)


USUAL = Search()
"""What estimates take where nothing else is said."""


def estimate(
    objective: Objective,
    adaptation: Adaptation,
    data: NodeData,
    points: Sequence[Tree],
    search: Search = USUAL,
    target: NodeData | None = None,
) -> Constants:
    """Estimates for every source, each over the given points and where they adapt to.

    The adapted points φ_i belong to it: β bounds the gradient there.

    Args:
        objective: model and loss; dropout is off.
        adaptation: α and how many steps lead from θ to φ.
        data: of the sources, with a node axis.
        points: where to look: θ of some rounds, or anywhere.
        search: seeds and efforts.
        target: of one target, without a node axis; gives the gaps ψ and its own constants.
    """
    if not points:
        raise SettingError("there are no points to estimate constants at", "give at least one θ")
    sources = []
    for position in range(len(data.support.mask)):
        one = _node(data, position)
        found = estimate_node(objective, one, _visited(objective, adaptation, one, points), search)
        if target is not None:
            gaps = estimate_gaps(objective, union(target), union(one), points, search)
            found = replace(found, gradient_gap=gaps[0], hessian_gap=gaps[1])
        sources.append(found)
    constants = None
    if target is not None:
        places = _visited(objective, adaptation, target, points)
        constants = estimate_node(objective, target, places, search)
    return Constants(tuple(sources), adaptation.step_size, closed_form=False, target=constants)


def estimate_node(
    objective: Objective, data: NodeData, points: Sequence[Tree], search: Search = USUAL
) -> NodeConstants:
    """μ, β, ζ (the larger of support and query set) and σᵍ, σʰ (over all samples) of one node."""
    found = NodeConstants(0.0, 0.0, 0.0)
    for samples in data:
        found = greater(
            found,
            NodeConstants(
                smoothness=smoothness(objective, samples, points, search),
                gradient=largest_gradient(objective, samples, points),
                hessian=hessian_lipschitz(objective, samples, points, search),
            ),
        )
    everything = union(data)
    sigma_g = max(gradient_deviation(objective, everything, point) for point in points)
    sigma_h = max(hessian_deviation(objective, everything, point, search) for point in points)
    return replace(found, gradient_deviation=sigma_g, hessian_deviation=sigma_h)


def smoothness(
    objective: Objective, samples: Samples, points: Sequence[Tree], search: Search = USUAL
) -> float:
    """μ as the largest ‖∇²L(θ)‖ over the points, by power iteration."""
    key = randomness.key(search.seed)
    return max(
        spectral_norm(hessian(objective, samples, point), point, key, search)[0] for point in points
    )


def largest_gradient(objective: Objective, samples: Samples, points: Sequence[Tree]) -> float:
    """β as the largest ‖∇L(θ)‖ over the points."""
    return max(_norm(objective.gradient(point, samples)[0]) for point in points)


def hessian_lipschitz(
    objective: Objective, samples: Samples, points: Sequence[Tree], search: Search = USUAL
) -> float:
    """ζ as the largest ‖∇²L(a) − ∇²L(b)‖ / ‖a − b‖ found.

    Pairs are the points one after the other, and every point with one close by. The way there is
    turned towards the vector that the difference stretches most: a symmetric form of degree three
    attains its norm where all its arguments agree (Banach, 1938).
    """
    key, largest = randomness.key(search.seed), 0.0
    for before, after in pairwise(points):
        distance = _norm(tree.subtract(after, before))
        if distance > 0:
            change = _difference(
                hessian(objective, samples, after), hessian(objective, samples, before)
            )
            largest = max(largest, spectral_norm(change, before, key, search)[0] / distance)
    for point in points:
        here, way = hessian(objective, samples, point), _direction(randomness.fold(key, 1), point)
        for _ in range(search.turns):
            there = tree.combine(1.0, point, search.reach, way)
            change = _difference(hessian(objective, samples, there), here)
            norm, way = spectral_norm(change, point, key, search)
            largest = max(largest, norm / search.reach)
    return largest


def gradient_deviation(objective: Objective, samples: Samples, point: Tree) -> float:
    """σᵍ = (mean‖∇ℓ_j − ∇L‖²)^½ over the samples of a node, at a point."""
    mean = objective.gradient(point, samples)[0]
    squares = [
        tree.squared_norm(tree.subtract(objective.gradient(point, one)[0], mean))
        for one in _singles(samples)
    ]
    return float(torch.stack(squares).mean().sqrt())


def hessian_deviation(
    objective: Objective, samples: Samples, point: Tree, search: Search = USUAL
) -> float:
    """σʰ = (mean‖∇²ℓ_j − ∇²L‖²)^½ in the spectral norm, which is at most the Frobenius norm."""
    kept = Samples(*(part[samples.mask > 0][: search.samples] for part in samples))
    mean, key = hessian(objective, kept, point), randomness.key(search.seed)
    norms = [
        spectral_norm(_difference(hessian(objective, one, point), mean), point, key, search)[0]
        for one in _singles(kept)
    ]
    return float(torch.tensor(norms, dtype=torch.float64).square().mean().sqrt())


def estimate_gaps(
    objective: Objective,
    target: Samples,
    source: Samples,
    points: Sequence[Tree],
    search: Search = USUAL,
) -> tuple[float, float]:
    """ψᵍ and ψʰ: the largest ‖∇L_m − ∇L_i‖ and ‖∇²L_m − ∇²L_i‖ over the points.

    The means over the nodes' samples stand for the expected losses that the theory compares.
    """
    gradients, hessians, key = [], [], randomness.key(search.seed)
    for point in points:
        theirs, ours = (objective.gradient(point, each)[0] for each in (target, source))
        gradients.append(_norm(tree.subtract(theirs, ours)))
        change = _difference(hessian(objective, target, point), hessian(objective, source, point))
        hessians.append(spectral_norm(change, point, key, search)[0])
    return max(gradients), max(hessians)


def hessian(objective: Objective, samples: Samples, point: Tree) -> Product:
    """The map v ↦ ∇²L(θ, D) v."""
    # The Hessian is symmetric: the pull-back of the gradient map is the product.
    _, pull_back, *_ = torch.func.vjp(lambda p: objective.gradient(p, samples)[0], point)
    return lambda vector: pull_back(vector)[0]


def spectral_norm(
    product: Product, like: Tree, key: Tensor, search: Search = USUAL
) -> tuple[float, Tree]:
    """‖A‖ of a symmetric map by power iteration, and the unit vector it ended at.

    ‖Av‖ for unit v grows from step to step and never exceeds ‖A‖, also where eigenvalues of both
    signs compete.

    Example:
        >>> start = {"a": torch.zeros(2)}
        >>> stretch = lambda v: {"a": torch.tensor([3.0, -5.0]) * v["a"]}
        >>> round(spectral_norm(stretch, start, randomness.key(0))[0], 4)
        5.0
    """
    vector, largest = _direction(key, like), 0.0
    for _ in range(search.iterations):
        image = product(vector)
        norm = _norm(image)
        if not 0 < norm < float("inf"):
            return norm, vector
        vector = tree.scale(1 / norm, image)
        grown, largest = norm > largest * (1 + search.tolerance), max(norm, largest)
        if not grown:
            break
    return largest, vector


def _visited(
    objective: Objective, adaptation: Adaptation, data: NodeData, points: Sequence[Tree]
) -> list[Tree]:
    """The points and where the node adapts to from them."""
    return [*points, *(adapt(objective, adaptation, p, data.support) for p in points)]


def _difference(a: Product, b: Product) -> Product:
    return lambda vector: tree.subtract(a(vector), b(vector))


def _direction(key: Tensor, like: Tree) -> Tree:
    """A random unit vector."""
    drawn = {}
    for place, (name, leaf) in enumerate(like.items()):
        draw = randomness.truncated_normal(randomness.fold(key, place), leaf.numel())
        drawn[name] = draw.reshape(leaf.shape).to(leaf)
    return tree.scale(1 / _norm(drawn), drawn)


def _singles(samples: Samples) -> list[Samples]:
    """Every real sample as a set of its own."""
    rows = torch.nonzero(samples.mask > 0).flatten().tolist()
    return [Samples(*(part[row : row + 1] for part in samples)) for row in rows]


def _node(data: NodeData, position: int) -> NodeData:
    node: NodeData = map_leaves(lambda leaf: leaf[position], data)
    return node


def _norm(a: Tree) -> float:
    return float(tree.squared_norm(a).sqrt())
