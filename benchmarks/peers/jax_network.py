"""The benchmarks' networks for JAX, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.peers import library
from fedmeta.models.networks import SamePool


def jax_network(network: nn.Module) -> Callable[[Any, Any], Any]:
    """The same network for JAX, layer by layer."""
    jax = library("jax")

    def predict(theta: Any, inputs: Any) -> Any:
        for name, layer in network.named_children():
            if isinstance(layer, nn.Conv2d):
                kernel, shift = theta[f"{name}.weight"], theta[f"{name}.bias"][:, None, None]
                inputs = jax.lax.conv(inputs, kernel, (1, 1), "SAME") + shift
            elif isinstance(layer, SamePool):
                window, stride = (1, 1, 3, 3), (1, 1, 2, 2)
                pool, numpy = jax.lax.reduce_window, jax.numpy
                if layer.kind == "max":
                    inputs = pool(inputs, -numpy.inf, jax.lax.max, window, stride, "SAME")
                else:  # the border is left out of averages
                    ones = numpy.ones((1, 1, *inputs.shape[2:]), inputs.dtype)
                    parts = (
                        pool(x, 0.0, jax.lax.add, window, stride, "SAME") for x in (inputs, ones)
                    )
                    total, count = parts
                    inputs = total / count
            elif isinstance(layer, nn.Linear):
                inputs = inputs @ theta[f"{name}.weight"].T + theta[f"{name}.bias"]
            elif isinstance(layer, nn.ELU):
                inputs = jax.nn.elu(inputs)
            else:
                inputs = inputs.reshape(len(inputs), -1)
        return inputs

    return predict
