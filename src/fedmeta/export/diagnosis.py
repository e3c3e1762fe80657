"""Which layer stands in the way of an export: each is tried alone, on the samples it would see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.core.errors import MissingExtraError, ModelError
from fedmeta.core.tree import Tree
from fedmeta.export.graph import Graph
from fedmeta.export.lengths import open_lengths
from fedmeta.models.functional import functionalise
from fedmeta.models.meta_model import MetaModel


def translated(model: MetaModel, graph: Graph) -> Any:
    """A model's graph as an `onnx.ModelProto`, or an error that names the layer it fails at."""
    try:
        with open_lengths(model.network.inference):
            return graph.translated()
    except MissingExtraError:
        raise
    except Exception as error:  # the tracer and the exporter raise whatever they like
        place = _failing_layer(model) or "the network or the loss as a whole"
        raise ModelError(
            f"{place} cannot be exported to ONNX ({_reason(error)})",
            "use a layer made of plain tensor operations, such as those of the built-in networks",
        ) from error


def _failing_layer(model: MetaModel) -> str | None:
    """The first layer that fails alone; None if each of them can be exported."""
    module = model.network.module(model.theta)
    blank = model.scaled(np.zeros((3, *model.input_shape), np.float32))
    calling = model.network.calling
    given = ((blank,), {}) if calling is None else calling.arguments(blank)
    for name, layer, inputs in _seen(module, *given):
        try:
            _alone(layer, inputs).translated()
        except Exception:  # as above
            return f"layer {name!r} ({type(layer).__name__})"
    return None


def _seen(
    module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]
) -> list[tuple[str, nn.Module, Tensor]]:
    """Every innermost layer with the input that it gets, in the order in which they are called."""
    seen: list[tuple[str, nn.Module, Tensor]] = []

    def remember(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor):
                seen.append((name, layer, given[0].detach().clone()))

        return hook

    handles = [
        layer.register_forward_pre_hook(remember(name))
        for name, layer in module.named_modules()
        if not list(layer.children())
    ]
    try:
        with torch.no_grad():
            module(*given, **named)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _alone(layer: nn.Module, inputs: Tensor) -> Graph:
    """The gradients of one layer by its input and its parameters."""
    for parameter in layer.parameters():
        parameter.requires_grad_(True)
    theta = functionalise(layer).theta if list(layer.parameters()) else {}

    def gradients(given: Tree) -> Tree:
        def value(point: Tree) -> Tensor:
            parameters = {name: point[name] for name in theta}
            outputs = torch.func.functional_call(layer, parameters, (point["inputs"],))
            first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
            return first.square().sum()

        found: Tree = torch.func.grad(value)({name: given[name] for name in ("inputs", *theta)})
        return {f"by {name}": leaf for name, leaf in found.items()}

    return Graph(gradients, {"inputs": inputs.float()}, dict(theta))


def _reason(error: BaseException) -> str:
    """The line of the innermost complaint that says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
