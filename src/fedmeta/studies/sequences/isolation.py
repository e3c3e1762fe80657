"""Parameter isolation: every task has a last layer of its own; what lies before it is shared.

A device must know which task it is in: it takes that task's last layer before it adapts. The heads
of earlier tasks are not touched by later ones, but the layers before them go on learning: a prior
on these (`isolation+euclidean`) is what holds them.
"""

from __future__ import annotations

from dataclasses import replace

from fedmeta.core.tree import Tree
from fedmeta.models.head import head_of
from fedmeta.models.meta_model import MetaModel


def head(model: MetaModel, theta: Tree) -> Tree:
    """Of parameters of a model, those that produce its output."""
    names = _names(model)
    return {name: leaf for name, leaf in theta.items() if name in names}


def body(model: MetaModel) -> Tree:
    """All other parameters of a model."""
    names = _names(model)
    return {name: leaf for name, leaf in model.theta.items() if name not in names}


def with_head(model: MetaModel, other: Tree) -> MetaModel:
    """The model with the last layer of another one, which has the same network."""
    return replace(model, theta={**model.theta, **head(model, other)})


def _names(model: MetaModel) -> tuple[str, ...]:
    first = next(iter(model.theta.values()))
    return head_of(model.network, first.new_zeros(2, *model.input_shape)).names
