"""L(φ(θ), D^q) in plain PyTorch: what automatic differentiation turns into the meta-gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from benchmarks.problems import Samples


def meta_loss(model: nn.Module, node: Samples, step_size: float) -> Tensor:
    """The query loss after one step of size α on the support set, differentiable through it."""
    theta = dict(model.named_parameters())
    loss = cross_entropy(model(node.support_inputs), node.support_labels)
    gradient = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
    adapted = {
        name: leaf - step_size * slope
        for (name, leaf), slope in zip(theta.items(), gradient, strict=True)
    }
    outputs = functional_call(model, adapted, (node.query_inputs,))
    return cross_entropy(outputs, node.query_labels)
