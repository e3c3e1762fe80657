"""How much each parameter matters to the tasks so far: the diagonal A of `SquaredMahalanobis`.

Two estimates, both without raw data at the platform: the Fisher diagonal, a sum over nodes like
any other contribution, and the work done along the path of training, which the platform knows by
itself. Estimates of several tasks add up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import DataError, require_positive
from fedmeta.core.objective import Objective
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree


def fisher_contribution(objective: Objective, theta: Tree, samples: Samples) -> tuple[Tree, Tensor]:
    """What a node sends for the Fisher diagonal: Σ_n (∂ℓ_n/∂θ)² and the number of its samples.

    The gradients are those of single samples, with their own labels (the "empirical" Fisher, no
    squares of batch gradients), and without dropout. Sums of several nodes add; where the mask is
    0 there is no sample. It runs under `torch.func.vmap` over nodes.

    Args:
        objective: model and loss.
        theta: where to take it: the meta-model, or a model adapted from it.
        samples: the node's own.

    Example:
        >>> objective = Objective(lambda t, x, key: x * t["a"], lambda o, y: (o - y).square() / 2)
        >>> x, y, mask = torch.tensor([[1.0, 2.0, 9.0], [0.0, 1.0, 9.0], [1.0, 1.0, 0.0]])
        >>> fisher_contribution(objective, {"a": torch.tensor(1.0)}, Samples(x, y, mask))
        ({'a': tensor(5.)}, tensor(2.))

    Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017.
    """

    def of_one(inputs: Tensor, labels: Tensor) -> Tree:
        single = Samples(inputs[None], labels[None], torch.ones_like(samples.mask[:1]))
        return objective.gradient(theta, single)[0]

    gradients = torch.func.vmap(of_one)(samples.inputs, samples.labels)
    total = tree.transform(lambda g: torch.tensordot(samples.mask, g.square(), 1), gradients)
    return total, samples.mask.sum()


def fisher(total: Tree, count: Tensor | float) -> Tree:
    """The Fisher diagonal: the mean of the squared gradients of all samples.

    EWC's penalty (λ/2) Σ F(θ − θ_p)² is `SquaredMahalanobis` with A = ½F.

    Args:
        total: the sum over nodes of the trees of `fisher_contribution`.
        count: the sum over nodes of their counts.

    Example:
        >>> importance = tree.scale(0.5, fisher({"a": torch.tensor(5.0)}, 2.0))
        >>> importance
        {'a': tensor(1.2500)}
    """
    if not float(count) > 0:
        raise DataError("the Fisher diagonal has no samples", "let at least one node contribute")
    return tree.scale(1 / count, total)


class Path(NamedTuple):
    """What the platform keeps of a training: two trees, whatever its length.

    Args:
        work: ω = −Σ_t g_t ⊙ Δθ_t, each parameter's share in the fall of the loss.
        moved: Σ_t Δθ_t.
    """

    work: Tree
    moved: Tree


def path_start(theta: Tree) -> Path:
    """The path before the first round."""
    return Path(tree.zeros_like(theta), tree.zeros_like(theta))


def path_step(path: Path, gradient: Tree, movement: Tree) -> Path:
    """The path one round further.

    Args:
        path: so far.
        gradient: of the meta-loss where the round began; ADMM's platform has it as −Σy_i.
        movement: Δθ, what the round changed.

    Example:
        >>> gradient, movement = {"a": torch.tensor([2.0])}, {"a": torch.tensor([-0.5])}
        >>> path_step(path_start(gradient), gradient, movement).work
        {'a': tensor([1.])}
    """
    work = {name: leaf - gradient[name] * movement[name] for name, leaf in path.work.items()}
    return Path(work, tree.add(path.moved, movement))


def path_importance(path: Path, damping: float = 0.1) -> Tree:
    """Ω = max(ω, 0) / (moved² + ξ): what a parameter contributed, per square of how far it went.

    Args:
        path: of the whole training, from `path_start` by a `path_step` per round.
        damping: ξ > 0, which keeps parameters that did not move from being divided by 0.

    Example:
        >>> path = Path({"a": torch.tensor([1.0, -1.0])}, {"a": torch.tensor([-0.5, 0.0])})
        >>> path_importance(path, damping=0.25)
        {'a': tensor([2., 0.])}

    Zenke, Poole, Ganguli, Continual learning through synaptic intelligence, ICML 2017.
    """
    require_positive("damping", damping)
    return {
        name: leaf.clamp(min=0) / (path.moved[name].square() + damping)
        for name, leaf in path.work.items()
    }
