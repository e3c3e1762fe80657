"""Priors of repeats that are computed together: one regulariser, and its tensors stacked.

Repeats share an algorithm, but each is tied to a model θ_p of its own. What differs then are
tensors, and tensors can be mapped over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.core.tree import map_leaves

Tensors = dict[str, Any]
"""The fields of a prior that hold tensors, by name: single ones, or trees of them."""


def prior_tensors(algorithm: Algorithm, like: Tensor | None = None) -> Tensors:
    """The tensors of an algorithm's prior: θ_p and, for instance, importance or inputs.

    Args:
        algorithm: with a prior or without.
        like: floating-point tensors get its device and dtype, others its device; None: as they are.

    Example:
        >>> from fedmeta.algorithms import ADMMFedMeta
        >>> from fedmeta.priors import SquaredEuclidean
        >>> theta_p = {"a": torch.tensor([1.0])}
        >>> prior_tensors(ADMMFedMeta(prior=SquaredEuclidean(0.5, theta_p)))
        {'prior': {'a': tensor([1.])}}
    """
    prior = algorithm.prior
    if not _has_fields(prior):
        return {}
    found = {each.name: getattr(prior, each.name) for each in fields(prior)}
    tensors = {name: value for name, value in found.items() if _holds_tensors(value)}
    if like is None:
        return tensors

    def moved(leaf: Tensor) -> Tensor:
        return leaf.to(like.device, like.dtype if leaf.is_floating_point() else leaf.dtype)

    placed: Tensors = map_leaves(moved, tensors)
    return placed


def with_prior_tensors(algorithm: Algorithm, tensors: Tensors) -> Algorithm:
    """The same algorithm with other tensors in its prior."""
    if not tensors:
        return algorithm
    prior = algorithm.prior
    assert _has_fields(prior)
    assert is_dataclass(algorithm)
    return replace(algorithm, prior=replace(prior, **tensors))


def what_differs(one: Algorithm, other: Algorithm) -> str | None:
    """What two algorithms differ in besides the tensors of their priors, or None if nothing."""
    if type(one) is not type(other) or not is_dataclass(one):
        return None if one == other else "algorithm"
    for each in fields(one):
        if each.name != "prior" and getattr(one, each.name) != getattr(other, each.name):
            return each.name
    mine, theirs = one.prior, other.prior
    if not _has_fields(mine) or type(mine) is not type(theirs):
        return None if mine is theirs else "prior"
    tensors, others = prior_tensors(one), prior_tensors(other)
    if map_leaves(_form, tensors) != map_leaves(_form, others):
        return "prior"
    plain = [each.name for each in fields(mine) if each.name not in tensors]
    same = all(getattr(mine, name) == getattr(theirs, name) for name in plain)
    return None if same else "prior"


def _has_fields(prior: Any) -> TypeGuard[Any]:
    return is_dataclass(prior) and not isinstance(prior, type)


def _holds_tensors(value: object) -> bool:
    leaves = value.values() if isinstance(value, Mapping) else [value]
    return bool(leaves) and all(isinstance(leaf, Tensor) for leaf in leaves)


def _form(leaf: Tensor) -> tuple[torch.Size, torch.dtype]:
    return leaf.shape, leaf.dtype
