"""A round of ADMM-FedMeta as a loop over nodes, whatever computes a node's meta-gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.peers import Round, Theta
from benchmarks.problems import Problem, Samples

MetaGradient = Callable[[Samples], Sequence[Tensor]]


def admm_loop(problem: Problem, model: nn.Module, meta_gradient: MetaGradient) -> Round:
    """Rounds on the model's own parameters.

    Args:
        problem: nodes and settings.
        model: holds θ; it is updated in place.
        meta_gradient: G_i at the model's parameters, in their order.
    """
    parameters = list(model.parameters())
    samples = problem.samples(str(parameters[0].device))
    duals = [[torch.zeros_like(leaf) for leaf in parameters] for _ in samples]
    weight = 1 / len(samples)

    def one_round() -> Theta:
        total = [torch.zeros_like(leaf) for leaf in parameters]
        for node, dual in zip(samples, duals, strict=True):
            gradient = meta_gradient(node)
            with torch.no_grad():
                for place, slope in enumerate(gradient):
                    updated = -weight * slope  # y_i, and v_i = 2y_i − y_i⁻ is what it sends
                    total[place] += 2 * updated - dual[place]
                    dual[place] = updated
        with torch.no_grad():
            for leaf, change in zip(parameters, total, strict=True):
                leaf.add_(change, alpha=1 / problem.penalty)
        return {name: leaf.detach() for name, leaf in model.named_parameters()}

    return one_round
