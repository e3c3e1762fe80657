"""Constants that are known without looking along a path: those of softmax regression."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch
from torch import nn

from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import map_leaves
from fedmeta.models.losses import Loss, cross_entropy
from fedmeta.theory.constants import Constants, NodeConstants


def is_softmax_regression(module: nn.Module, loss: Loss) -> bool:
    """Whether a model is one linear layer with bias, all of it trained, with cross-entropy.

    Example:
        >>> is_softmax_regression(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), cross_entropy)
        True
    """
    layers = [module] if not isinstance(module, nn.Sequential) else list(module)
    kinds = [type(layer) for layer in layers if not isinstance(layer, nn.Flatten)]
    named = dict(module.named_parameters())
    trained = len(named) == 2 and all(leaf.requires_grad for leaf in named.values())
    return kinds == [nn.Linear] and trained and loss is cross_entropy


def of_softmax_regression(
    data: NodeData, step_size: float, target: NodeData | None = None
) -> Constants:
    """The constants of all nodes, see `softmax_regression`.

    Hessians are semidefinite, so that two differ by no more than the larger: ψʰ = max(μ_m, μ_i);
    gradients differ by at most their sum, ψᵍ = β_m + β_i.

    Args:
        data: of the sources, with a node axis.
        step_size: α.
        target: of one target, without a node axis.
    """
    own = None if target is None else softmax_regression(target)
    nodes = []
    for position in range(len(data.support.mask)):
        found = softmax_regression(map_leaves(lambda leaf, row=position: leaf[row], data))
        if own is not None:
            gaps = own.gradient + found.gradient, max(own.smoothness, found.smoothness)
            found = replace(found, gradient_gap=gaps[0], hessian_gap=gaps[1])
        nodes.append(found)
    return Constants(tuple(nodes), step_size, closed_form=True, target=own)


def softmax_regression(data: NodeData) -> NodeConstants:
    """The constants of cross-entropy with one linear layer with bias, valid for every θ.

    With x̃ = (x, 1), S = mean x̃x̃ᵀ, s its largest eigenvalue and R = max‖x̃‖,

        μ = s/2,   β = √(2s),   ζ = (√6/9)·R·s,   σᵍ = √(2·mean‖x̃‖²),   σʰ = √(mean‖x̃‖⁴/2).

    Args:
        data: of one node, without a node axis; what the mask leaves out is not looked at.

    Example:
        >>> from fedmeta.core.sample_sets import Samples
        >>> one = Samples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.ones(2))
        >>> softmax_regression(NodeData(one, one)).smoothness
        0.5
    """
    # A sample's Hessian is A ⊗ x̃x̃ᵀ with A = diag(p) − ppᵀ, the covariance of a one-hot vector.
    # uᵀAu is the variance of a variable with range at most √2‖u‖, so at most ‖u‖²/2: μ = s/2.
    # Its gradient is (p − e_y) ⊗ x̃ with ‖p − e_y‖ ≤ √2, and for rows g_j with ‖g_j‖ ≤ √2 the mean
    # of g_j ⊗ x̃_j is at most √2·√s (Cauchy-Schwarz over the samples): β.
    # The derivative of A is a third central moment. Over variables of range √2 it is largest for
    # two-point ones, p(1−p)(1−2p)·(√2)³ ≤ (√3/18)·2√2 = √6/9; with (1/n)Σ‖Dx̃‖‖Vx̃‖² ≤ R·s: ζ.
    # Deviations are at most root mean squares; A has eigenvalues in [0, ½] with sum below 1, so
    # ‖A‖_F² ≤ ½ gives σʰ in the Frobenius norm.
    largest = NodeConstants(0.0, 0.0, 0.0)
    for samples in data:
        rows = samples.inputs[samples.mask > 0].flatten(1).to(torch.float64)
        x = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        lengths = x.square().sum(1)
        s = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1])
        largest = elementwise_max(
            largest,
            NodeConstants(
                smoothness=s / 2,
                gradient=sqrt(2 * s),
                hessian=sqrt(6) / 9 * sqrt(float(lengths.max())) * s,
                gradient_deviation=sqrt(2 * float(lengths.mean())),
                hessian_deviation=sqrt(float(lengths.square().mean()) / 2),
            ),
        )
    return largest


def elementwise_max(a: NodeConstants, b: NodeConstants) -> NodeConstants:
    """The constants that hold for both: the larger of each."""
    return NodeConstants(
        *(max(getattr(a, name), getattr(b, name)) for name in NodeConstants.__dataclass_fields__)
    )
