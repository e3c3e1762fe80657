"""A maximum before an activation that rises is the same as after it."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from fedmeta.models.networks import Activation, ModelSettings, SamePool, build
from nodewise.loops import close, randn

ACTIVATIONS = get_args(Activation)


def activation_first(model: nn.Sequential) -> nn.Sequential:
    """The same layers, every activation before the maximum it follows."""
    layers = list(model)
    for place, (one, two) in enumerate(pairwise(model)):
        if isinstance(one, SamePool) and one.kind == "max":
            layers[place], layers[place + 1] = two, one
    assert layers != list(model)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("pooling", ["max", "average"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients_are_equal(activation: str, pooling: str):
    settings = ModelSettings("cnn", channels=(4, 5), activation=activation, last_pooling=pooling)
    model = build(settings, (2, 11, 12), 3, seed=0).double()
    other = activation_first(model)
    x = randn(6, 2, 11, 12)
    assert torch.equal(model(x), other(x))
    theta = {name: leaf.detach() for name, leaf in model.named_parameters()}

    def gradient(network: nn.Module) -> dict[str, torch.Tensor]:
        return grad(lambda t: functional_call(network, t, (x,)).square().sum())(theta)

    assert list(theta) == [name for name, _ in other.named_parameters()]
    close(gradient(model), gradient(other))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_comes_after_a_maximum_and_before_an_average(activation: str):
    for pooling in ("max", "average"):
        settings = ModelSettings(
            "cnn", channels=(2, 2), activation=activation, last_pooling=pooling
        )
        kinds = [type(layer) for layer in build(settings, (1, 8, 8), 3, seed=0)]
        last = [SamePool, kinds[2]] if pooling == "max" else [kinds[2], SamePool]
        assert kinds[:6] == [nn.Conv2d, SamePool, kinds[2], nn.Conv2d, *last]
        assert kinds[2] not in (nn.Conv2d, SamePool)
