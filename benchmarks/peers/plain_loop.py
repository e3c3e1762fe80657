"""A plain loop over nodes in PyTorch, as a careful user would write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.peers import Round
from benchmarks.peers.admm_loop import admm_loop
from benchmarks.peers.meta_loss import meta_loss
from benchmarks.problems import Problem, Samples


def plain_loop(problem: Problem, device: str, autocast: bool = False) -> Round:
    """Rounds of ADMM-FedMeta with torch.autograd.

    Args:
        problem: what to train.
        device: where.
        autocast: let torch take products in bfloat16.
    """
    model = problem.module(device)
    parameters = list(model.parameters())
    kind = torch.device(device).type

    def meta_gradient(node: Samples) -> Sequence[Tensor]:
        with torch.autocast(kind, torch.bfloat16, enabled=autocast):
            loss = meta_loss(model, node, problem.step_size)
        return torch.autograd.grad(loss, parameters)

    return admm_loop(problem, model, meta_gradient)
