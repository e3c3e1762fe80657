"""Constants estimated from data, at given points: lower bounds of the true ones, never more.

Curvature is never a matrix: ‖∇²L‖ comes from power iteration with Hessian-vector products, for
all nodes at once. What a supremum over all θ may be beyond the points looked at, no estimate can
say.

Everything here has a node axis: samples (I, n, …), points as trees with leaves (I, …), results
(I,).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError, require_positive, require_whole
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.randomness import DiagnosisPurpose
from fedmeta.core.sample_sets import NodeData, Samples, union
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.problem import broadcast, squared_norms

Product = Callable[[Tree], Tree]
"""A symmetric linear map for every node, as Hessians are."""


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
        nodes: that are computed at once; None: all. More need more memory and less time.
    """

    seed: int = 0
    iterations: int = 60
    tolerance: float = 1e-6
    reach: float = 1e-2
    turns: int = 4
    samples: int = 16
    nodes: int | None = None

    def __post_init__(self) -> None:
        for name in ("iterations", "turns", "samples"):
            require_whole(name, getattr(self, name), 1)
        if self.nodes is not None:
            require_whole("nodes", self.nodes, 1)
        require_positive("tolerance", self.tolerance)
        require_positive("reach", self.reach)


OnPart = Callable[[int, int], None]
_PARTS = 3  # of the work on some nodes, about equally long

USUAL = Search()
"""What estimates take where nothing else is said."""

QUICK = Search(iterations=20, tolerance=1e-2, turns=2, samples=4)
"""Within some per cent of it, in a tenth of the time."""


def estimate(
    objective: Objective,
    adaptation: Adaptation,
    data: NodeData,
    points: Sequence[Tree],
    search: Search = USUAL,
    target: NodeData | None = None,
    on_part: OnPart = lambda _done, _parts: None,
) -> Constants:
    """Estimates for every source, each over the given points and where they adapt to.

    The adapted points φ_i belong to it: β bounds the gradient there.

    Args:
        objective: model and loss; dropout is off.
        adaptation: α and how many steps lead from θ to φ.
        data: of the sources, with a node axis.
        points: where to look: θ of some rounds, or anywhere; without a node axis.
        search: seeds and efforts.
        target: of one target, without a node axis; gives the gaps ψ and its own constants.
        on_part: told how many parts of the work are done, and how many there are.
    """
    if not points:
        raise SettingError("there are no points to estimate constants at", "give at least one θ")
    count = len(data.support.mask)
    chunks = torch.split(torch.arange(count), search.nodes or count)
    parts = _PARTS * (len(chunks) + (target is not None))
    done = itertools.count(1)

    def one_more() -> None:
        on_part(next(done), parts)

    sources: list[NodeConstants] = []
    for rows in chunks:
        some: NodeData = map_leaves(lambda leaf, rows=rows: leaf[rows.to(leaf.device)], data)
        sources += _of_nodes(objective, adaptation, some, points, search, target, one_more)
    own = None
    if target is not None:
        single: NodeData = map_leaves(lambda leaf: leaf[None], target)
        (own,) = _of_nodes(objective, adaptation, single, points, search, None, one_more)
    return Constants(tuple(sources), adaptation.step_size, closed_form=False, target=own)


def _of_nodes(
    objective: Objective,
    adaptation: Adaptation,
    data: NodeData,
    points: Sequence[Tree],
    search: Search,
    target: NodeData | None,
    one_more: Callable[[], None],
) -> list[NodeConstants]:
    """The constants of some nodes, part by part; with a target, the gaps ψ to it as well."""
    count = len(data.support.mask)
    plain = [
        {name: leaf.expand(count, *leaf.shape) for name, leaf in point.items()} for point in points
    ]
    adapted = torch.func.vmap(lambda p, d: adapt(objective, adaptation, p, d.support))
    places, everything = [*plain, *(adapted(point, data) for point in plain)], union_of(data)
    found = {"smoothness": _largest(smoothness(objective, s, places, search) for s in data)}
    one_more()
    found["gradient"] = _largest(
        _norms(_gradients(objective, samples)(place)) for samples in data for place in places
    )
    found["hessian"] = _largest(hessian_lipschitz(objective, s, places, search) for s in data)
    one_more()
    found["gradient_deviation"] = _largest(
        gradient_deviation(objective, everything, place) for place in places
    )
    found["hessian_deviation"] = _largest(
        hessian_deviation(objective, everything, place, search) for place in places
    )
    one_more()
    if target is not None:
        theirs = Samples(*(part.expand(count, *part.shape) for part in union(target)))
        gaps = _gaps(objective, theirs, everything, plain, search)
        found["gradient_gap"], found["hessian_gap"] = gaps
    names = [each.name for each in fields(NodeConstants) if each.name in found]
    table = torch.stack([found[name].double() for name in names], 1).tolist()
    return [NodeConstants(**dict(zip(names, row, strict=True))) for row in table]


def smoothness(
    objective: Objective, samples: Samples, points: Sequence[Tree], search: Search = USUAL
) -> Tensor:
    """μ as the largest ‖∇²L(θ)‖ over the points, by power iteration."""
    key = randomness.key(search.seed)
    return _largest(
        spectral_norm(hessian(objective, samples, point), point, key, search)[0] for point in points
    )


def hessian_lipschitz(
    objective: Objective, samples: Samples, points: Sequence[Tree], search: Search = USUAL
) -> Tensor:
    """ζ as the largest ‖∇²L(a) − ∇²L(b)‖ / ‖a − b‖ found.

    Pairs are the points one after the other, and every point with one close by. The way there is
    turned towards the vector that the difference stretches most: a symmetric form of degree three
    attains its norm where all its arguments agree (Banach, 1938).
    """
    key, found = randomness.key(search.seed), []
    for before, after in pairwise(points):
        distance = _norms(tree.subtract(after, before))
        change = _difference(
            hessian(objective, samples, after), hessian(objective, samples, before)
        )
        norm = spectral_norm(change, before, key, search)[0]
        found.append(torch.where(distance > 0, norm / distance, 0.0))
    for point in points:
        here = hessian(objective, samples, point)
        way = _direction(randomness.fold(key, DiagnosisPurpose.DIRECTION), point)
        for _ in range(search.turns):
            there = tree.combine(1.0, point, search.reach, way)
            change = _difference(hessian(objective, samples, there), here)
            norm, way = spectral_norm(change, point, key, search)
            found.append(norm / search.reach)
    return _largest(found)


def gradient_deviation(objective: Objective, samples: Samples, point: Tree) -> Tensor:
    """σᵍ = (mean‖∇ℓ_j − ∇L‖²)^½ over the samples of a node, at a point."""
    mean = _gradients(objective, samples)(point)
    return _root_mean_square(
        samples, lambda one: _norms(tree.subtract(_gradients(objective, one)(point), mean))
    )


def hessian_deviation(
    objective: Objective, samples: Samples, point: Tree, search: Search = USUAL
) -> Tensor:
    """σʰ = (mean‖∇²ℓ_j − ∇²L‖²)^½ in the spectral norm, which is at most the Frobenius norm.

    Of a node's samples the first few are looked at; they are those of `union_of`, without padding
    among them.
    """
    kept = Samples(*(part[:, : search.samples] for part in samples))  # padding is at the end
    mean, key = hessian(objective, kept, point), randomness.key(search.seed)

    def distance(one: Samples) -> Tensor:
        off = _difference(hessian(objective, one, point), mean)
        return spectral_norm(off, point, key, search)[0]

    return _root_mean_square(kept, distance)


def _gaps(
    objective: Objective, target: Samples, sources: Samples, points: Sequence[Tree], search: Search
) -> tuple[Tensor, Tensor]:
    """ψᵍ and ψʰ: the largest ‖∇L_m − ∇L_i‖ and ‖∇²L_m − ∇²L_i‖ over the points.

    The means over the nodes' samples stand for the expected losses that the theory compares. The
    target's samples are there once for every source.
    """
    gradients, hessians, key = [], [], randomness.key(search.seed)
    for point in points:
        theirs, ours = (_gradients(objective, each)(point) for each in (target, sources))
        gradients.append(_norms(tree.subtract(theirs, ours)))
        change = _difference(hessian(objective, target, point), hessian(objective, sources, point))
        hessians.append(spectral_norm(change, point, key, search)[0])
    return _largest(gradients), _largest(hessians)


def hessian(objective: Objective, samples: Samples, point: Tree) -> Product:
    """The map v ↦ ∇²L(θ, D) v of every node."""
    # A Hessian is symmetric: the pull-back of the gradient map is the product. No node's gradient
    # depends on another's point, so that the pull-back of all is that of each.
    _, pull_back, *_ = torch.func.vjp(_gradients(objective, samples), point)
    return lambda vector: pull_back(vector)[0]


def spectral_norm(
    product: Product, like: Tree, key: Tensor, search: Search = USUAL
) -> tuple[Tensor, Tree]:
    """‖A‖ of symmetric maps by power iteration, and the unit vectors it ended at.

    ‖Av‖ for unit v grows from step to step and never exceeds ‖A‖, also where eigenvalues of both
    signs compete.

    Example:
        >>> start = {"a": torch.zeros(1, 2)}
        >>> stretch = lambda v: {"a": torch.tensor([3.0, -5.5]) * v["a"]}
        >>> spectral_norm(stretch, start, randomness.key(0))[0]
        tensor([5.5000])
    """
    vector = _direction(key, like)
    largest = torch.zeros_like(_norms(vector))
    for _ in range(search.iterations):
        image = product(vector)
        norm = _norms(image)
        usable = norm.isfinite() & (norm > 0)
        vector = {
            name: torch.where(broadcast(usable, leaf), leaf / broadcast(norm, leaf), vector[name])
            for name, leaf in image.items()
        }
        grown = norm > largest * (1 + search.tolerance)
        largest = torch.maximum(norm, largest)
        if not bool((grown & usable).any()):
            break
    return largest, vector


def union_of(data: NodeData) -> Samples:
    """All samples of every node."""
    together: Samples = torch.func.vmap(union)(data)
    return together


def _gradients(objective: Objective, samples: Samples) -> Callable[[Tree], Tree]:
    """θ_i ↦ ∇L_i(θ_i) of every node."""
    mapped = torch.func.vmap(lambda point, some: objective.gradient(point, some)[0])
    return lambda points: mapped(points, samples)


def _difference(a: Product, b: Product) -> Product:
    return lambda vector: tree.subtract(a(vector), b(vector))


def _direction(key: Tensor, like: Tree) -> Tree:
    """A random unit vector, the same for every node."""
    drawn = {}
    for place, (name, leaf) in enumerate(like.items()):
        draw = randomness.truncated_normal(randomness.fold(key, place), leaf[0].numel())
        drawn[name] = draw.reshape(1, *leaf.shape[1:]).to(leaf).expand_as(leaf)
    return {name: leaf / broadcast(_norms(drawn), leaf) for name, leaf in drawn.items()}


def _root_mean_square(samples: Samples, distance: Callable[[Samples], Tensor]) -> Tensor:
    """(mean distance²)^½ over the samples of a node, of which each is given alone."""
    total = torch.zeros_like(samples.mask[:, 0])
    for place in range(samples.mask.shape[1]):
        inputs, labels, mask = (part[:, place : place + 1] for part in samples)
        alone = Samples(inputs, labels, torch.ones_like(mask))  # padding as if it were a real one
        total = total + mask[:, 0] * distance(alone).square()
    return (total / samples.mask.sum(1)).sqrt()


def _largest(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).amax(0)


def _norms(a: Tree) -> Tensor:
    """‖a_i‖ of every node, (I,)."""
    return squared_norms(a).sqrt()
