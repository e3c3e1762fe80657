"""A plain loop over nodes in PyTorch, as a careful user would write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.peers import Round
from benchmarks.peers.admm_loop import admm_loop
from benchmarks.peers.meta_loss import meta_loss
from benchmarks.problems import Problem, Samples


def plain_loop(
    problem: Problem, device: str, autocast: bool = False, channels_last: bool = False
) -> Round:
    """Rounds of ADMM-FedMeta with torch.autograd.

    Args:
        problem: what to train.
        device: where.
        autocast: let torch take products in bfloat16.
        channels_last: keep images and kernels in the layout that CPUs pool fastest.
    """
    model = problem.module(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = list(model.parameters())
    kind = torch.device(device).type

    def meta_gradient(node: Samples) -> Sequence[Tensor]:
        if channels_last:
            support, query = (
                images.contiguous(memory_format=torch.channels_last)
                for images in (node.support_inputs, node.query_inputs)
            )
            node = node._replace(support_inputs=support, query_inputs=query)
        with torch.autocast(kind, torch.bfloat16, enabled=autocast):
            loss = meta_loss(model, node, problem.step_size)
        return torch.autograd.grad(loss, parameters)

    return admm_loop(problem, model, meta_gradient)
