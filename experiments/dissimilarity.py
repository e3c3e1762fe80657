"""How unlike the sources a target is: an estimate of Theorem 2's ψ at one point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedmeta.config.execution import Execution
from fedmeta.core.objective import Objective
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, Node
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.machine import machine
from fedmeta.engine.samples import NodeStore
from fedmeta.models.meta_model import MetaModel


def dissimilarities(model: MetaModel, federation: Federation, execution: Execution) -> list[float]:
    """For every target m: ‖∇L_m(θ) − Σw_i∇L_i(θ)‖, on all samples that the nodes hold.

    The theorem has the supremum over θ of each source's distance; this is the distance to their
    mean at the θ that was trained.

    Args:
        model: θ and its scaling.
        federation: sources and targets.
        execution: with its path and chunk size resolved.
    """
    network = model.network.to(execution.torch_device, execution.torch_dtype)
    theta = {name: leaf.to(network.theta[name]) for name, leaf in model.theta.items()}
    objective = Objective(predictor(network, execution), model.loss)

    def gradient(data: NodeData) -> Tree:
        return objective.gradient(theta, union(data))[0]

    def gradients(nodes: Sequence[Node]) -> Tree:
        chunk = min(execution.chunk or 1, len(nodes))
        layout = Layout(replace(execution, chunk=chunk), objective)
        store = NodeStore(federation, nodes, model.scaling, execution, resident=False)
        found: Tree = layout.map(gradient, store)
        return found

    sizes = torch.tensor([node.size for node in federation.sources], dtype=torch.float64)
    with machine(execution):
        sources, targets = gradients(federation.sources), gradients(federation.targets)
    squares = torch.zeros(len(federation.targets), dtype=torch.float64)
    for name, leaf in sources.items():
        weights = (sizes / sizes.sum()).to(leaf)
        apart = targets[name] - torch.tensordot(weights, leaf, dims=1)
        squares += apart.flatten(1).square().sum(dim=1).double().cpu()
    return [float(each) for each in squares.sqrt()]
