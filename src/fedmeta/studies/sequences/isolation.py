"""Parameter isolation: every task has a last layer of its own; what lies before it is shared.

A device must know which task it is in: it takes that task's last layer before it adapts. The heads
of earlier tasks are not touched by later ones, but the layers before them go on learning: a prior
on these (`isolation+euclidean`) is what holds them.
"""

from __future__ import annotations

from dataclasses import replace

from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from fedmeta.models.meta_model import MetaModel

_HEAD = Adaptation(scope="head")


def head(theta: Tree) -> Tree:
    """The tensors of the last module that has parameters.

    Example:
        >>> import torch
        >>> list(head({"0.weight": torch.ones(1), "2.weight": torch.ones(1)}))
        ['2.weight']
    """
    names = _HEAD.moves(theta)
    return {name: leaf for name, leaf in theta.items() if name in names}


def body(theta: Tree) -> Tree:
    """All other tensors.

    Example:
        >>> import torch
        >>> list(body({"0.weight": torch.ones(1), "2.weight": torch.ones(1)}))
        ['0.weight']
    """
    names = _HEAD.moves(theta)
    return {name: leaf for name, leaf in theta.items() if name not in names}


def with_head(model: MetaModel, other: Tree) -> MetaModel:
    """The model with the last layer of another one."""
    return replace(model, theta={**model.theta, **head(other)})
