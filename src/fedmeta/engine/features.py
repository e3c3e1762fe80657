"""The samples of a federation as features of a frozen body, computed once and kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.config.execution import Execution
from fedmeta.data.federation import Federation, Node
from fedmeta.data.pool import Array
from fedmeta.data.scaling import Scaling
from fedmeta.engine.feature_store import FeatureStore, feature_store
from fedmeta.engine.machine import machine
from fedmeta.models.features import Cut, cut_off, features_of
from fedmeta.models.functional import FunctionalModel
from fedmeta.models.meta_model import MetaModel


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

    def applied(self, model: MetaModel) -> MetaModel:
        """A model of the whole network as one of its rest, which takes features."""
        shape = self.federation.inputs.shape[1:]
        return replace(model, network=self.network, scaling=self.scaling, input_shape=shape)


def cut_for(network: FunctionalModel, inputs: Tensor, execution: Execution) -> Cut | None:
    """A network in two parts, where its body is to be computed once per sample; else None.

    Args:
        network: the whole.
        inputs: a few scaled samples to try it on.
        execution: says how frozen parts are computed.
    """
    if execution.frozen == "every-pass" or not network.constants:
        return None
    try:
        with machine(execution):
            return cut_off(network, inputs)
    except Exception:  # whatever somebody's forward raises; the check of all of it will tell
        return None


def features_of_nodes(
    cut: Cut, federation: Federation, scaling: Scaling, execution: Execution
) -> Features:
    """Features of all samples that nodes hold; others of the pool may be 0.

    What was computed before with the same body, for the same pool, is not computed again: see
    `feature_store`.

    Args:
        cut: the network in two parts.
        federation: the nodes and their samples.
        scaling: of the inputs.
        execution: device, type and memory budget.
    """
    sets = [each for n in federation.nodes for each in (n.support, n.query, n.precise)]
    held = np.unique(np.concatenate(sets))

    def computed(places: Array) -> Array:
        samples = scaling.apply(federation.inputs[places], execution.torch_dtype)
        found: Array = features_of(cut.body, samples).numpy()
        return found

    like = cut.features.cpu().numpy()
    about = hashlib.sha256(f"{_digest(cut.body, scaling, execution)}{like.shape[1:]}".encode())
    about.update(np.ascontiguousarray(federation.inputs).data)
    shape = (len(federation.inputs), *like.shape[1:])
    size = sum(each.numel() for each in (*cut.body.parameters(), *cut.body.buffers()))
    store: FeatureStore = feature_store(
        about.hexdigest(), shape, like.dtype.str, size, execution.budget
    )
    rows = store.filled(held, computed)
    plain = Scaling(np.zeros(()), np.ones(()), scaling.labels)
    return Features(cut.rest, replace(federation, inputs=rows, features=()), plain)


def features_for(
    model: MetaModel, federation: Federation, nodes: list[Node], execution: Execution
) -> Features | None:
    """What a model with a frozen body needs of some nodes; None: it has none."""
    network = model.network.to(execution.torch_device, execution.torch_dtype)
    if not network.constants or not nodes:
        return None
    few = np.concatenate([nodes[0].support, nodes[0].query])[:4]
    inputs = model.scaling.apply(federation.inputs[few], execution.torch_dtype)
    cut = cut_for(network, inputs.to(execution.torch_device), execution)
    if cut is None:
        return None
    return features_of_nodes(cut, federation.with_nodes(nodes), model.scaling, execution)


def _digest(body: nn.Module, scaling: Scaling, execution: Execution) -> str:
    """Of the body and of how it is computed; not of the samples."""
    found = hashlib.sha256(f"{body}{execution.device}{execution.dtype}".encode())
    found.update(torch.__version__.encode())
    for name, leaf in {**body.state_dict(), **scaling.tensors()}.items():
        found.update(name.encode())
        found.update(leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
