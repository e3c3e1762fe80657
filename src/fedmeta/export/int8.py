"""Eight bits for what a device does not adapt: weights before the head, and what enters them.

A weight is rounded to a multiple of a scale of its output channel, s_c = max |w_c| / 127; what
enters a layer to one of 255 steps of the range that the source nodes have told
(`activation_ranges`), stretched to hold 0. Both are written as pairs of QuantizeLinear and
DequantizeLinear, which runtimes turn into products of integers where they have them. Biases and the
head stay in float32, so that adaptation is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedmeta.core.errors import ModelError
from fedmeta.export.activation_ranges import Ranges

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_SHAPES = ("Transpose", "Identity", "Reshape", "Unsqueeze", "Squeeze")


def with_int8(proto: Any, weights: Mapping[str, str], ranges: Ranges) -> None:
    """Write some weights of a graph, and what enters them, in eight bits.

    Args:
        proto: an `onnx.ModelProto`, changed in place.
        weights: names of the initializers, and the layer that each belongs to.
        ranges: of what enters the layers.

    Raises:
        ModelError: where there is nothing that could be written so.
    """
    graph = proto.graph
    stored = {each.name: each for each in graph.initializer if each.name in weights}
    if not stored:
        raise ModelError(
            "there is nothing to write in eight bits: all layers adapt, or none is before the head",
            "export it in float32, or train with inner.scope = 'head' and a hidden layer",
        )
    nodes = list(_weight_nodes(graph, stored))
    made_of = {name: name for name in stored}
    for node in graph.node:
        source = next((made_of[each] for each in node.input if each in made_of), None)
        if source is None:
            pass
        elif node.op_type in _SHAPES and node.input[0] in made_of:
            made_of[node.output[0]] = source
        elif node.op_type in _PRODUCTS and node.input[1] in made_of:
            nodes += _rounded_input(graph, node, ranges[weights[source]])
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _weight_nodes(graph: Any, stored: Mapping[str, Any]) -> Iterator[Any]:
    """Put integers in the place of weights; the nodes that make weights of them again."""
    import onnx

    for name, tensor in stored.items():
        weight = onnx.numpy_helper.to_array(tensor)
        scale = np.abs(weight).reshape(len(weight), -1).max(axis=1) / 127
        scale = np.where(scale > 0, scale, 1).astype(np.float32)
        whole = np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.int8)
        graph.initializer.remove(tensor)
        _store(graph, f"{name}/int8", whole)
        _store(graph, f"{name}/scale", scale)
        parts = [f"{name}/int8", f"{name}/scale"]
        yield onnx.helper.make_node("DequantizeLinear", parts, [name], axis=0)


def _rounded_input(graph: Any, node: Any, reach: tuple[float, float]) -> list[Any]:
    """The nodes that round what enters a product."""
    import onnx

    low, high = min(reach[0], 0.0), max(reach[1], 0.0)
    scale = np.float32((high - low) / 255 or 1.0)
    zero = np.int8(np.clip(np.rint(-128 - low / scale), -128, 127))
    source, own = node.input[0], f"{node.output[0]}/input"
    _store(graph, f"{own}/scale", np.asarray(scale))
    _store(graph, f"{own}/zero", np.asarray(zero))
    about = [f"{own}/scale", f"{own}/zero"]
    node.input[0] = own
    return [
        onnx.helper.make_node("QuantizeLinear", [source, *about], [f"{own}/int8"]),
        onnx.helper.make_node("DequantizeLinear", [f"{own}/int8", *about], [own]),
    ]


def _store(graph: Any, name: str, values: Any) -> None:
    import onnx

    graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values), name))
