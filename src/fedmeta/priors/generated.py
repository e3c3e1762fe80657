"""Inputs that are made from a model alone, where the platform has no data to compare outputs on.

They start as noise with the mean and deviation that scaling gives to real inputs, and descend

    −ln p_θ(class | x)  +  s · mean |x − its neighbours|²  +  n · mean x²

with classes in equal parts, until the model is sure of them: they show what it has learned, not
what samples look like. Everything is computed at the platform.

Yin et al., Dreaming to distill: data-free knowledge transfer via DeepInversion, CVPR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError, require_whole
from fedmeta.core.randomness import Purpose
from fedmeta.core.tree import Tree
from fedmeta.data.pool import Array
from fedmeta.models.functional import FunctionalModel
from fedmeta.models.meta_model import MetaModel

COUNT = 200
"""How many inputs are made, if nobody says more."""
_STEPS, _STEP_SIZE = 100, 0.05  # of Adam, on scaled inputs
_SMOOTH, _NORM = 0.1, 0.01


def generated_inputs(
    network: FunctionalModel,
    theta: Tree,
    shape: Sequence[int],
    classes: Sequence[int],
    count: int = COUNT,
    seed: int = 0,
) -> Tensor:
    """Inputs that a model takes for its classes, scaled as it wants them, (count, *shape).

    Args:
        network: of the model.
        theta: its parameters.
        shape: of one input.
        classes: their numbers; inputs are made for each of them in turn.
        count: how many.
        seed: of the noise.

    Example:
        >>> from torch import nn
        >>> from fedmeta.models.functional import functionalise
        >>> network = functionalise(nn.Linear(3, 2))
        >>> theta = {"weight": torch.eye(2, 3), "bias": torch.zeros(2)}
        >>> made = generated_inputs(network, theta, (3,), (0, 1), 4)
        >>> network(theta, made).argmax(dim=1)
        tensor([0, 1, 0, 1])
    """
    require_whole("how many inputs are generated", count, 1)
    leaf = next(iter(theta.values()))
    stream = randomness.fold(randomness.key(seed), Purpose.GENERATED)
    size = count * int(torch.Size(shape).numel())
    noise = randomness.normal(stream, size).reshape(count, *shape).to(leaf)
    wanted = torch.tensor([classes[i % len(classes)] for i in range(count)], device=leaf.device)
    inputs = noise.requires_grad_()
    optimizer = torch.optim.Adam([inputs], _STEP_SIZE)
    for _ in range(_STEPS):
        with torch.enable_grad():
            unlike = cross_entropy(network(theta, inputs), wanted, reduction="sum")
            plain = _SMOOTH * _roughness(inputs) + _NORM * inputs.square().flatten(1).mean(dim=1)
            (inputs.grad,) = torch.autograd.grad(unlike + plain.sum(), [inputs])
        optimizer.step()
    return inputs.detach()


def raw_generated(model: MetaModel) -> Array:
    """Inputs for all classes of a model, in the unit of samples before they are scaled.

    Args:
        model: as a run has stored it.
    """
    if model.scaling.tokens:
        raise SettingError("tokens cannot be generated", "name unlabelled samples by prior.data")
    classes = range(model.task.outputs)
    made = generated_inputs(model.network, model.theta, model.input_shape, classes)
    raw = made.double().numpy() * model.scaling.deviation + model.scaling.mean
    return raw.astype(np.float32)


def _roughness(inputs: Tensor) -> Tensor:
    """Mean squared difference of neighbours in the last two axes; 0 for what is no image."""
    if inputs.ndim < 3:
        return inputs.new_zeros(len(inputs))
    steps = [inputs.diff(dim=axis).square().flatten(1).mean(dim=1) for axis in (-1, -2)]
    return steps[0] + steps[1]
