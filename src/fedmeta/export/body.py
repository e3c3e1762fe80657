"""A frozen body as a file of its own: an inference graph from raw samples to features.

Beside it lies the graph of the head, which takes features and adapts. A device computes features
once per sample, whatever the steps; the body may be run by anything that reads ONNX.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedmeta.core.errors import ModelError
from fedmeta.core.tree import Tree
from fedmeta.data.scaling import Scaling
from fedmeta.export.graph import Graph
from fedmeta.export.step import CONSTANTS, context, part, raw_inputs, scaled
from fedmeta.models.features import Cut, cut_off
from fedmeta.models.meta_model import MetaModel

SUFFIX = ".body.onnx"
_WORTH_A_FILE = 100_000  # numbers of a body
_TOLERANCE = 1e-4
_FEATURES = "features"


class Apart(NamedTuple):
    """A model in two parts.

    Args:
        cut: body and rest.
        head: the rest as a model of features.
    """

    cut: Cut
    head: MetaModel


def body_apart(model: MetaModel) -> Apart | None:
    """The model with its frozen body cut off; None where it has none, or a small one.

    Args:
        model: in float32 on the CPU.
    """
    if not model.network.constants or model.scaling.tokens:
        return None
    try:
        cut = cut_off(model.network, torch.zeros(2, *model.input_shape))
    except Exception:  # whatever somebody's forward raises: as a whole it may do
        return None
    if cut is None:
        return None
    size = sum(each.numel() for each in (*cut.body.parameters(), *cut.body.buffers()))
    if size < _WORTH_A_FILE:
        return None
    plain = Scaling(np.zeros(()), np.ones(()), model.scaling.labels)
    shape = tuple(cut.features.shape[1:])
    return Apart(cut, replace(model, network=cut.rest, scaling=plain, input_shape=shape))


def body_file(path: Path) -> Path:
    """Where the body of a model file lies.

    Example:
        >>> body_file(Path("out/model.onnx")).name
        'model.body.onnx'
    """
    return path.with_name(path.stem + SUFFIX)


def features_graph(model: MetaModel, cut: Cut) -> Graph:
    """Raw samples to features, the body's parameters part of the graph."""
    state = {name: leaf.detach() for name, leaf in cut.body.state_dict(keep_vars=True).items()}

    def features(given: Tree) -> Tree:
        tensors = part(given, CONSTANTS)
        return {_FEATURES: torch.func.functional_call(cut.body, tensors, (scaled(given),))}

    constants = {CONSTANTS + name: leaf for name, leaf in state.items()}
    return Graph(features, raw_inputs(model), constants={**constants, **context(model, {})})


def check_body(model: MetaModel, cut: Cut, session: Any) -> None:
    """Run a body's file and compare with PyTorch, on samples all over the range of inputs."""
    draw = np.random.default_rng(0)
    spread = draw.random((3, *model.input_shape)) * model.scaling.deviation
    samples = (model.scaling.mean + spread).astype(np.float32)
    (found,) = session.run([_FEATURES], {"inputs": samples})
    with torch.no_grad():
        wanted = cut.body(model.scaled(samples)).numpy()
    error = float(np.abs(found - wanted).max())
    if not error <= _TOLERANCE * max(1.0, float(np.abs(wanted).max())):
        raise ModelError(
            f"the exported body gives other features than PyTorch (off by {error:.1g})",
            "use layers like those of the built-in networks",
        )
