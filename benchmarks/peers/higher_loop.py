"""The loop with facebookresearch/higher: a differentiable optimiser on a patched module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.peers import Round, library
from benchmarks.peers.admm_loop import admm_loop
from benchmarks.problems import Problem, Samples


def higher_loop(problem: Problem, device: str) -> Round:
    """Rounds of ADMM-FedMeta, written as higher's example maml-omniglot.py."""
    higher = library("higher")
    model = problem.module(device)
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=problem.step_size)

    def meta_gradient(node: Samples) -> Sequence[Tensor]:
        context = higher.innerloop_ctx(model, optimiser, copy_initial_weights=False)
        with context as (patched, inner):
            inner.step(cross_entropy(patched(node.support_inputs), node.support_labels))
            loss = cross_entropy(patched(node.query_inputs), node.query_labels)
            return torch.autograd.grad(loss, parameters)

    return admm_loop(problem, model, meta_gradient)
