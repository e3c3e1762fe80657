"""The loop with TorchOpt's MetaSGD."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.peers import Round, library
from benchmarks.peers.admm_loop import admm_loop
from benchmarks.problems import Problem, Samples


def torchopt_loop(problem: Problem, device: str) -> Round:
    """Rounds of ADMM-FedMeta; model and optimiser are put back after every node."""
    torchopt = library("torchopt")
    model = problem.module(device)
    parameters = list(model.parameters())
    inner = torchopt.MetaSGD(model, lr=problem.step_size)
    before = [torchopt.extract_state_dict(each, by="reference") for each in (model, inner)]

    def meta_gradient(node: Samples) -> Sequence[Tensor]:
        inner.step(cross_entropy(model(node.support_inputs), node.support_labels))
        loss = cross_entropy(model(node.query_inputs), node.query_labels)
        gradient = torch.autograd.grad(loss, parameters)
        for target, state in zip((model, inner), before, strict=True):
            torchopt.recover_state_dict(target, state)
        return gradient

    return admm_loop(problem, model, meta_gradient)
