"""The samples of a federation as features of a frozen body, computed once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from fedmeta.config.execution import Execution
from fedmeta.data.federation import Federation
from fedmeta.data.pool import Array
from fedmeta.data.scaling import Scaling
from fedmeta.models.features import Cut, features_of
from fedmeta.models.functional import FunctionalModel


class Features(NamedTuple):
    """What is trained instead of a network with a frozen body.

    Args:
        network: the rest of it, which takes features.
        federation: the same nodes with features for inputs.
        scaling: leaves features as they are; labels are scaled as ever.
    """

    network: FunctionalModel
    federation: Federation
    scaling: Scaling


def features_of_nodes(
    cut: Cut, federation: Federation, scaling: Scaling, execution: Execution
) -> Features:
    """Features of all samples that nodes hold; others of the pool stay 0.

    Runs and repeats with the same body and samples share them.

    Args:
        cut: the network in two parts.
        federation: the nodes and their samples.
        scaling: of the inputs.
        execution: device and type.
    """
    sets = [each for n in federation.nodes for each in (n.support, n.query, n.precise)]
    held = np.unique(np.concatenate(sets))

    def computed() -> Array:
        samples = scaling.apply(federation.inputs[held], execution.torch_dtype)
        found = features_of(cut.body, samples).numpy()
        features = np.zeros((len(federation.inputs), *found.shape[1:]), found.dtype)
        features[held] = found
        return features

    features = _kept(_Digested(_digest(cut, federation, held, scaling, execution), computed))
    plain = Scaling(np.zeros(()), np.ones(()), scaling.labels)
    return Features(cut.rest, replace(federation, inputs=features, features=()), plain)


class _Digested:
    """A computation that is the same as others with its digest."""

    def __init__(self, digest: str, compute: Callable[[], Array]) -> None:
        self.digest, self.compute = digest, compute

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Digested) and self.digest == other.digest


@lru_cache(maxsize=2)
def _kept(asked: _Digested) -> Array:
    return asked.compute()


def _digest(
    cut: Cut, federation: Federation, held: Array, scaling: Scaling, execution: Execution
) -> str:
    """Of the body, the samples and how they are computed."""
    found = hashlib.sha256(f"{cut.body}{execution.device}{execution.dtype}".encode())
    tensors = {**cut.body.state_dict(), **scaling.tensors()}
    for name, leaf in tensors.items():
        found.update(name.encode())
        found.update(leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    found.update(held.tobytes())
    found.update(np.ascontiguousarray(federation.inputs[held]).tobytes())
    return found.hexdigest()
