"""Per-FedAvg with the Hessian of the support loss as a matrix: what O(n) avoids."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers import Missing, Round, Theta
from benchmarks.problems import Problem

_MOST_BYTES = 2 * 10**9
_ROWS = 256  # of the Hessian, computed at once


def explicit_hessian(problem: Problem, device: str) -> Round:
    """Rounds of Per-FedAvg with one local step, G = (I − α∇²L) ∇L(φ).

    Raises:
        Missing: if the matrix would take more than 2 GB.
    """
    model = problem.module(device)
    for leaf in model.parameters():
        leaf.requires_grad_(False)
    theta = parameters_to_vector(model.parameters())
    size = theta.numel() ** 2 * theta.itemsize
    if size > _MOST_BYTES:
        raise Missing(f"the Hessian of {theta.numel():,} parameters takes {size / 1e9:,.3g} GB")
    samples = problem.samples(device)
    shapes = {name: leaf.shape for name, leaf in model.named_parameters()}

    def loss(vector: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        parts = torch.split(vector, [shape.numel() for shape in shapes.values()])
        tree = {
            name: part.view(shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        return cross_entropy(functional_call(model, tree, (inputs,)), labels)

    slope = grad(loss)
    hessian = jacrev(slope, chunk_size=_ROWS)

    def one_round() -> Theta:
        nonlocal theta
        total = torch.zeros_like(theta)
        for node in samples:
            adapted = theta - problem.step_size * slope(theta, *node[:2])
            r = slope(adapted, *node[2:])
            matrix = hessian(theta, *node[:2])
            local = theta - problem.meta_step_size * (r - problem.step_size * (matrix @ r))
            total += local / len(samples)
        theta = total
        vector_to_parameters(theta, model.parameters())
        return {name: leaf.detach().clone() for name, leaf in model.named_parameters()}

    return one_round
